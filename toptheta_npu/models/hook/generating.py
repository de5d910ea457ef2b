"""Changes ``generate`` within a context: which cache it makes, and when drafts begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ...errors import TopThetaNotImplementedError
from ..caches.growing import GrowingCache
from ..caches.naming import CACHE_ARGUMENT
from ..caches.visible_keys import ForwardRows


@contextmanager
def generating(model: PreTrainedModel, rows: ForwardRows) -> Iterator[None]:
    """Let ``generate`` of ``model`` use a `GrowingCache` and keep drafts out of a prompt's call, within the context.

    A cache that the caller passes, or names by ``cache_implementation``, does not change. ``rows`` records how many
    tokens each call verifies.
    """
    original = type(model)
    model.__class__ = _with_growing_cache(original, rows)
    try:
        yield
    finally:
        model.__class__ = original


def _with_growing_cache(original: type[PreTrainedModel], rows: ForwardRows) -> Any:
    class Growing(original):  # type: ignore[misc, valid-type]
        def _prepare_cache_for_generation(
            self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
        ) -> Any:
            chosen = model_kwargs.get(CACHE_ARGUMENT) is not None or generation_config.cache_implementation is not None
            result = super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
            made = model_kwargs.get(CACHE_ARGUMENT)
            if chosen or generation_config.use_cache is False or not self._supports_default_dynamic_cache():
                return result
            if made is None or type(made) is DynamicCache:  # transformers 5.0 leaves it to the model
                model_kwargs[CACHE_ARGUMENT] = GrowingCache(self.config.get_text_config(decoder=True))
            return result

        def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:  # which generate_batch calls
            raise TopThetaNotImplementedError(
                "model", "a call of generate()", "continuous batching (generate_batch or cache_implementation='paged')",
                "pad the prompts on the left and pass them to generate() as one batch, or serve the model with vLLM",
            )  # fmt: skip

        def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any:
            drafts = super()._get_candidate_generator(*args, **kwargs)
            # generators that need the model's outputs draft nothing before it has run
            return drafts if getattr(drafts, "requires_model_outputs", False) else _AfterThePrompt(drafts, rows)

    # models write the name of their class into their configuration
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Growing, name, getattr(original, name))
    return Growing


class _AfterThePrompt:
    """A candidate generator whose drafts begin with the second call, as if the first ones had been rejected.

    transformers verifies the first drafts in the call of the prompt. There they would be dense, like the prompt, and
    the result might differ from decoding without drafts.
    """

    def __init__(self, drafts: Any, rows: ForwardRows) -> None:
        self._drafts, self._rows = drafts, rows
        self._prompt_came = False

    def get_candidates(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the tokens with drafts behind them, and the drafts' logits if there are any."""
        drafted = self._drafts.get_candidates(input_ids, *args, **kwargs)  # which also makes a drafting model's cache
        if not self._prompt_came:
            return input_ids, None
        self._rows.most_drafts = max(self._rows.most_drafts, drafted[0].shape[1] - input_ids.shape[1] + 1)
        return drafted

    def update_candidate_strategy(self, *args: Any, **kwargs: Any) -> None:
        """Tell how many drafts were accepted."""
        self._prompt_came = True
        self._drafts.update_candidate_strategy(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafts, name)
