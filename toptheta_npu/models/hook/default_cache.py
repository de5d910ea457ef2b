"""The cache that ``generate`` makes where the caller names none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import DynamicCache, PreTrainedModel

from ..caches.growing import GrowingCache
from .borrowing import disguised, lend_class

_CACHE = "past_key_values"


@contextmanager
def growing_by_default(model: PreTrainedModel) -> Iterator[None]:
    """Let ``generate`` of ``model`` use a `GrowingCache` within the context, where it would make a ``DynamicCache``.

    A cache that the caller passes, or names by ``cache_implementation``, stays what it is.
    """
    undo = lend_class(model, _with_growing_cache(type(model)))
    try:
        yield
    finally:
        undo()


def _with_growing_cache(original: type[PreTrainedModel]) -> Any:
    class Growing(original):  # type: ignore[misc, valid-type]
        def _prepare_cache_for_generation(
            self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
        ) -> Any:
            chosen = model_kwargs.get(_CACHE) is not None or generation_config.cache_implementation is not None
            result = super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
            made = model_kwargs.get(_CACHE)
            if chosen or generation_config.use_cache is False or not self._supports_default_dynamic_cache():
                return result
            if made is None:  # transformers 5.0 leaves it to the model
                model_kwargs[_CACHE] = GrowingCache(self.config.get_text_config(decoder=True))
            elif type(made) is DynamicCache:
                model_kwargs[_CACHE] = GrowingCache.from_dynamic(made)
            return result

    return disguised(Growing, original)
