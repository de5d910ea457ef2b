"""The running mean of the V rows, which V-mean compensation needs in every decode step.

Its state is an attribute of the cache's own layer object, so it stays with the V rows that it sums up. A cache may
change between two steps without notice: beam search reorders it, assisted decoding crops it, users reset it or write
into its tensors. The state is then computed from V again.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache, StaticLayer

from ..._value_checks import host_can_read
from ...errors import TopThetaNotImplementedError, TopThetaTypeError
from ...fallback.antiquant import dequantise
from .int8 import Int8Layer
from .naming import CACHE_ARGUMENT
from .visible_keys import Rows

STATE = "_toptheta_value_mean"


class RunningMean:
    """Sums of the valid V rows of one cache layer, as an attribute of that layer.

    Attributes:
        totals: float32 [B, Hkv, Q, D], sums up to each token of the last call.
        count: int64 [B], number of rows summed; on the device for a preallocated cache, else on the CPU.
    """

    def __init__(self, totals: Tensor, count: Tensor, values: Tensor, owner: object) -> None:
        self.totals = totals
        self.count = count
        self._root = weakref.ref(_root(values))
        self._version, self._place = _version(values), _place(values)
        self._owner = owner

    def is_about(self, values: Tensor | None, owner: object) -> bool:
        """Tell whether this sums the rows of ``values``, unchanged since, and belongs to the same context.

        Rows behind them may have been dropped, as ``crop`` does.
        """
        if self._owner is not owner or values is None:
            return False
        if torch.compiler.is_compiling():
            return self._root() is values
        untouched = (self._version, self._place) == (_version(values), _place(values))
        return untouched and self._root() is _root(values)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copied or pickled cache holds other tensors: its state starts over
        return _no_state, ()

    def of_first(self, count: Tensor) -> Tensor | None:
        """Look up the sum of the first ``count`` rows [B], which the host knows; None if this does not hold it."""
        known = self.totals.shape[2]
        dropped = 0 if known == 1 else int(self.count[0] - count[0])
        if 0 <= dropped < known and torch.equal(self.count - dropped, count):
            return self.totals[:, :, known - 1 - dropped]
        return None


def _no_state() -> None:
    return None


def _root(values: Tensor) -> Tensor:
    """Return the tensor that this one is a view of, or itself."""
    base: Tensor | None = None if torch.compiler.is_compiling() else values._base
    return values if base is None else base


def _place(values: Tensor) -> tuple[Any, ...]:
    """Return a tensor's offset in its storage and its strides; nothing in a compiled step."""
    if torch.compiler.is_compiling():
        return ()
    return values.storage_offset(), values.stride(), values.shape[:2], values.shape[3:]


def _version(values: Tensor) -> int | None:
    """Return how often a tensor was written to. None if PyTorch does not count: in inference mode or when compiled."""
    return None if torch.compiler.is_compiling() or values.is_inference() else values._version


class CachedLayer:
    """The cache layer of one attention module, read just before the call that extends it."""

    def __init__(self, cache: Cache, index: int, owner: object) -> None:
        self._cache, self._index, self.owner = cache, index, owner
        self._known: RunningMean | None = None
        self._made_mean = False
        # a DynamicCache creates its layers with their first tokens
        if index < len(cache.layers):
            known = getattr(self.layer, STATE, None)
            if known is not None and known.is_about(self.layer.values, owner):
                self._known = known

    @property
    def layer(self) -> Any:
        """The layer object of the cache."""
        return self._cache.layers[self._index]

    @property
    def seen(self) -> int | Tensor:
        """Tokens in the layer; a tensor if the cache is preallocated."""
        seen: int | Tensor = self.layer.get_seq_length()
        return seen

    def check_holds(self, value: Tensor) -> None:
        """Raise TopThetaNotImplementedError unless the layer, just extended, keeps the rows of ``value``.

        Quantised layers do not, nor do layers that return only some of their rows.
        """
        layer = self.layer if self._index < len(self._cache.layers) else None
        kept = getattr(layer, "values", None)
        # batch and rows; some models keep latents, which have other heads and another size
        if isinstance(kept, Tensor) and kept.shape[::2] == value.shape[::2]:
            return
        raise TopThetaNotImplementedError(
            CACHE_ARGUMENT, "layers that keep all keys and values as plain tensors", type(layer).__name__,
            "pass DynamicCache() or StaticCache(...), and no cache_implementation but 'static'",
        )  # fmt: skip

    def ask_for_numbers(self, asked: bool = True) -> None:
        """Ask an int8 layer to return its int8 numbers for the next tokens; False takes it back."""
        if self._index < len(self._cache.layers) and isinstance(self.layer, Int8Layer):
            self.layer.asked_for_numbers = asked

    @property
    def antiquant(self) -> dict[str, Any]:
        """Scales and modes of an int8 layer, as the operators take them."""
        return self.layer.scales  # type: ignore[no-any-return]

    def dequantised(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Dequantise the numbers [B, Hkv, S, D] of an int8 layer to float32."""
        beside = self.layer.scales_beside
        return dequantise(key, beside[0]), dequantise(value, beside[1])

    def forget_older_mean(self) -> None:
        """Drop the mean unless this call made it. The next step sums up the rows that came at once."""
        if not self._made_mean and getattr(self.layer, STATE, None) is not None:
            delattr(self.layer, STATE)

    def value_mean(self, value: Tensor, rows: Rows) -> Tensor:
        """Compute the mean of the valid rows of ``value`` [B, Hkv, S, D] that each new token sees, its own included.

        If nothing else changed, only the new rows are added to the sum of an earlier call.

        Returns:
            float32 [B, Hkv, D] for one token, [B, Hkv, Q, D] for several.
        """
        scale = self.layer.scales_beside[1] if value.dtype is torch.int8 else None
        new = _new_rows(value, rows, scale)
        totals = self._sum_before(value, rows.before_call, scale)[:, :, None] + (
            new if new.shape[2] == 1 else new.cumsum(2)
        )
        if rows.query_lengths is None:
            self._keep_mean(totals, rows)
        return _mean(totals, rows)

    def _sum_before(self, value: Tensor, rows: Rows, scale: Tensor | None) -> Tensor:
        known = self._known
        if known is None:
            return sum_values(value, rows, scale)
        if not isinstance(self.layer, StaticLayer):
            total = known.of_first(_host_count(rows))
            return sum_values(value, rows, scale) if total is None else total
        # its tensor stays the same even after a reset, and only the device knows the count
        count, total = _host_count(rows), known.totals[:, :, -1]
        follows = (known.count.to(count.device) == count).to(value.device)
        # a device would wait to know whether all sequences follow; reading all of V is faster there
        if host_can_read(follows) and follows.all():
            return total
        return torch.where(follows[:, None, None], total, sum_values(value, rows, scale))

    def _keep_mean(self, totals: Tensor, rows: Rows) -> None:
        setattr(self.layer, STATE, RunningMean(totals, _host_count(rows), self.layer.values, self.owner))
        self._made_mean = True


def cache_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Find the cache among the arguments of an attention module. Its name differs in some models, or is missing."""
    cache = kwargs.get(CACHE_ARGUMENT)
    if cache is not None:
        return cache
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Cache)), None)


def look_at_cache(cache: object, index: int, owner: object) -> CachedLayer | None:
    """Look at the layer of ``cache`` that an attention module is about to extend. Return None without a cache.

    Raises:
        TopThetaTypeError: not a transformers Cache.
        TopThetaNotImplementedError: the layer keeps only a window of the tokens.
    """
    if cache is None:
        return None
    if not isinstance(cache, Cache):
        raise TopThetaTypeError(CACHE_ARGUMENT, "a transformers Cache", type(cache).__name__, "pass a DynamicCache")
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    layer = cache.layers[index] if index < len(cache.layers) else None
    if getattr(layer, "is_sliding", False):
        raise TopThetaNotImplementedError(
            CACHE_ARGUMENT, "a cache that keeps all tokens", type(layer).__name__, "pass DynamicCache()"
        )
    return CachedLayer(cache, index, owner)


def value_mean_without_cache(value: Tensor, rows: Rows) -> Tensor:
    """Compute the mean of the valid V rows of a step without a cache that keeps a state: float32 [B, Hkv, D]."""
    return _mean(sum_values(value, rows)[:, :, None], rows)


def sum_values(value: Tensor, rows: Rows, scale: Tensor | None = None) -> Tensor:
    """Sum the valid rows of ``value`` [B, Hkv, S, D]: float32 [B, Hkv, D]. ``scale`` broadcasts to int8 rows."""
    if scale is not None:
        value = dequantise(value, scale)
    if rows.lengths is None:
        return value[:, :, : rows.span].sum(2, dtype=torch.float32)
    column = torch.arange(value.shape[2], device=value.device)
    starts = torch.zeros_like(rows.lengths) if rows.starts is None else rows.starts
    valid = (column >= starts[:, None]) & (column < (starts + rows.lengths)[:, None])
    return torch.where(valid[:, None, :, None], value, 0.0).sum(2, dtype=torch.float32)


def _new_rows(value: Tensor, rows: Rows, scale: Tensor | None) -> Tensor:
    """Copy the V rows of the new tokens, the real ones first: float32 [B, Hkv, Q, D]."""
    new = _rows_of_call(value, rows)
    return new.float() if scale is None else dequantise(new, _rows_of_call(scale.expand(*value.shape[:3], -1), rows))


def _rows_of_call(cache: Tensor, rows: Rows) -> Tensor:
    new = rows.counts.shape[1]
    if rows.lengths is None:
        return cache[:, :, rows.span - new : rows.span]
    end = rows.lengths if rows.starts is None else rows.starts + rows.lengths
    first = end - (new if rows.query_lengths is None else rows.query_lengths)
    index = (first[:, None] + torch.arange(new, device=first.device)).clamp(0, cache.shape[2] - 1)
    return cache.gather(2, index[:, None, :, None].expand(-1, cache.shape[1], -1, cache.shape[3]))


def _host_count(rows: Rows) -> Tensor:
    """Count the keys of the last row of each sequence, [B]: on the CPU if they are known there."""
    return rows.counts[:, -1] if rows.host_lengths is None else rows.host_lengths


def _mean(totals: Tensor, rows: Rows) -> Tensor:
    """Divide sums [B, Hkv, Q, D] by the keys of their rows. One row has no axis Q."""
    if rows.lengths is None:
        return totals[:, :, 0] / rows.span
    mean = totals / rows.counts.clamp_min(1)[:, None, :, None]
    return mean[:, :, 0] if mean.shape[2] == 1 else mean
