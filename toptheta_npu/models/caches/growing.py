"""A transformers cache that grows in place: it appends each token without moving the others."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

#: A full buffer is replaced by a larger one: this fraction of its rows is added, and at least this many rows.
_SPARE_SHARE, _MIN_SPARE = 1 / 8, 64


class GrowingCache(DynamicCache):
    """A ``DynamicCache`` that appends new keys and values instead of copying all of them.

    Within `sparsify`, ``generate`` uses it unless the caller names a cache. It also works without `sparsify`, and does
    everything that a ``DynamicCache`` does, except offloading.

    A layer keeps K and V in buffers with up to an eighth more rows than it holds, at least 64. Its ``keys`` and
    ``values`` [B, Hkv, n, D] are views of them. After ``crop``, the next rows overwrite the dropped ones, even in views
    taken earlier. Layers with a sliding window, ``torch.compile`` and recorded gradients work as in a
    ``DynamicCache``, by copying.

    Args:
        config: configuration of the model, which says which layers have windows; None: no layer has one.

    Example:
        >>> import torch
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> from toptheta_npu.models import GrowingCache
        >>> model, _ = load_tiny_llama()
        >>> prompt, options = torch.arange(300)[None], {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
        >>> cache = GrowingCache(model.config)
        >>> torch.equal(model.generate(prompt, **options, cache=cache), model.generate(prompt, **options))
        True
        >>> cache.layers[0].keys.shape
        torch.Size([1, 2, 303, 64])
    """

    def __init__(self, config: PretrainedConfig | None = None) -> None:
        super().__init__(config=config)
        self._replace_layers()

    @classmethod
    def from_dynamic(cls, cache: DynamicCache) -> GrowingCache:
        """Make one with the tokens and layers of ``cache``, which must not be used afterwards."""
        made = cls()
        made.layers, made.layer_class_to_replicate = cache.layers, cache.layer_class_to_replicate
        made._replace_layers()
        return made

    def _replace_layers(self) -> None:
        self.layers = [_growing(layer) if type(layer) is DynamicLayer else layer for layer in self.layers]
        if self.layer_class_to_replicate is DynamicLayer:
            self.layer_class_to_replicate = GrowingLayer


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer. You may replace ``keys`` and ``values`` by any other tensors: the next update copies these."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new keys and values [B, Hkv, Q, D] behind those that are there. Return all.

        Values take the dtype of keys: under autocast theirs is another, and a ``DynamicCache`` converts them, too.
        """
        value_states = value_states.to(key_states.dtype)
        # a graph, compiled or for gradients, needs tensors that nobody writes to
        if torch.compiler.is_compiling() or _is_recorded(key_states, value_states):
            return self._update_by_copying(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        past = self.get_seq_length()
        keys, values = cast(Tensor, self.keys), cast(Tensor, self.values)
        if past and not (_continues(keys, key_states) and _continues(values, value_states)):
            return self._update_by_copying(key_states, value_states, *args, **kwargs)
        total = past + key_states.shape[2]
        if not self._holds(keys, values, total):
            self._buffers = _with_room(keys, key_states, past, total), _with_room(values, value_states, past, total)
        views = []
        for buffer, new in zip(cast(tuple[Tensor, Tensor], self._buffers), (key_states, value_states), strict=True):
            buffer.narrow(2, past, total - past).copy_(new)
            views.append(buffer.narrow(2, 0, total))
        self.keys, self.values = views
        return views[0], views[1]

    def reset(self) -> None:
        """Forget all tokens."""
        self.keys = self.values = self._buffers = None
        self.is_initialized = False

    def offload(self) -> None:
        """Move the tokens to the CPU, without the free rows behind them."""
        self._buffers = None
        super().offload()  # type: ignore[no-untyped-call]

    def _update_by_copying(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self._buffers = None
        return super().update(*args, **kwargs)

    def _holds(self, keys: Tensor, values: Tensor, rows: int) -> bool:
        """Tell whether the buffers begin with these tensors and have room for so many rows."""
        if self._buffers is None or rows > self._buffers[0].shape[2]:
            return False
        return _begins(keys, self._buffers[0]) and _begins(values, self._buffers[1])


def _growing(layer: DynamicLayer) -> GrowingLayer:
    made = GrowingLayer()
    made.__dict__.update(layer.__dict__)
    return made


def _is_recorded(*states: Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in states)


def _continues(held: Tensor, new: Tensor) -> bool:
    """Tell whether new rows differ from the held ones only in their number."""
    alike = held.dtype == new.dtype and held.device == new.device and not (held.requires_grad)
    return alike and held.shape[:2] == new.shape[:2] and held.shape[3:] == new.shape[3:]


def _begins(view: Tensor, buffer: Tensor) -> bool:
    """Tell whether ``view`` is the first rows of ``buffer``."""
    same_place = view.data_ptr() == buffer.data_ptr() and view.stride() == buffer.stride()
    return same_place and view.shape[:2] == buffer.shape[:2] and view.shape[3:] == buffer.shape[3:]


def _with_room(held: Tensor, new: Tensor, past: int, rows: int) -> Tensor:
    """Copy the rows held, [B, Hkv, past, D], into a tensor with room for ``rows`` and some more."""
    room = rows + max(int(rows * _SPARE_SHARE), _MIN_SPARE)
    # so that it can be written to after an active inference mode ends, and counts what is written
    with torch.inference_mode(False):
        buffer = new.new_empty((*new.shape[:2], room, new.shape[3]))
    if past:
        buffer.narrow(2, 0, past).copy_(held)
    return buffer
