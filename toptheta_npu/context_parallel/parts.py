"""A rank's share of a decode step, and the results of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._value_checks import cache_capacity, host_can_read
from ..errors import TopThetaValueError
from ..fallback import Arguments, Partial
from ..fallback.arguments import ANTIQUANT_SCALES
from ..fallback.layout import KeyValueCache, drop_token_axis, query_heads, valid_range
from ..fallback.sampled import sampled_keys, weighed_lse
from ..ops import incremental_attention_partial

_WHERE = (
    "actual_seq_lengths", "key_start", "block_table", "block_size", "num_heads", "num_key_value_heads", "input_layout",
    "scale_value", "key_antiquant_scale", "value_antiquant_scale", "key_antiquant_mode", "value_antiquant_mode",
)  # fmt: skip


@dataclass(frozen=True)
class Share:
    """A decode step over a rank's keys."""

    arguments: Arguments

    def sizes(self) -> dict[str, Any]:
        """Collect the sizes that all ranks have in common."""
        a = self.arguments
        return {
            "batch": len(a.query), "query_tokens": a.query_tokens, "num_heads": a.num_heads,
            "num_key_value_heads": a.num_key_value_heads, "head_dim": a.head_dim, "dtype": str(a.query.dtype),
        }  # fmt: skip

    def lse(self) -> Tensor:
        """Compute the LSE of this rank's keys, [B, Hq] or [B, Hq, Sq]. This reads all of K, and one V row per row."""
        a = self.arguments
        never = torch.full_like(a.threshold, torch.inf)
        part = incremental_attention_partial(a.query, a.key, a.value, never, **_where(a))
        return part.maximum + part.discarded_mass.log()

    def sampled_lse(self) -> Tensor:
        """Estimate `lse` from a sample of this rank's keys. This reads 400 rows of K."""
        a = self.arguments
        query, cache = query_heads(a.query, a.input_layout, a.num_heads), KeyValueCache.of(a)
        starts, lengths = valid_range(query, cache.capacity, a.key_start, a.actual_seq_lengths)
        sample = sampled_keys(lengths if lengths.dim() == 2 else lengths[:, None])
        places = (sample.places + starts[:, None, None]).clamp_max(cache.capacity - 1)[:, None]
        sequence = torch.arange(len(query), device=query.device).view(-1, 1, 1, 1)
        head = torch.arange(cache.num_key_value_heads, device=query.device).view(1, -1, 1, 1)
        index = torch.broadcast_tensors(sequence, head, places)
        keys = cache.key.gather(*(each.flatten() for each in index)).view(*index[0].shape, -1)
        grouped = (a.scale_value * query.float()).unflatten(1, (cache.num_key_value_heads, -1))
        scores = torch.einsum("bkgtd,bktsd->bkgts", grouped, keys).flatten(1, 2)
        return drop_token_axis(weighed_lse(scores, sample))

    def partial(self, lse: Tensor | None = None) -> Partial:
        """Compute this rank's part for `merge_partials`; probabilities need the LSE of the whole rows."""
        a = self.arguments
        placement = "pre_softmax" if lse is None else "post_softmax"
        return incremental_attention_partial(
            a.query, a.key, a.value, a.threshold, placement=placement, lse=lse, **_where(a)
        )

    @property
    def n(self) -> Tensor:
        """Valid keys, int32 [B] or [B, Sq]; clamped to the cache, as the operators do on devices."""
        a = self.arguments
        capacity = cache_capacity(a.key, a.input_layout, a.block_table)
        return valid_range(a.query, capacity, a.key_start, a.actual_seq_lengths)[1].int()


def _where(arguments: Arguments) -> dict[str, Any]:
    """Collect the arguments that locate the keys."""
    return {name: getattr(arguments, name) for name in _WHERE}


class Parts(NamedTuple):
    """The results of all ranks; the first dimension of each field is the rank. ``n`` are their valid keys, [w, B]
    or [w, B, Sq]."""

    out: Tensor
    maximum: Tensor
    kept_mass: Tensor
    discarded_mass: Tensor
    kept: Tensor
    n: Tensor

    def by_rank(self) -> list[Partial]:
        """Split the fields by rank, as `merge_partials` takes them."""
        return [Partial(*part) for part in zip(*self[:5], strict=True)]

    def lse(self) -> Tensor:
        """Compute the LSE of the whole rows, [B, Hq] or [B, Hq, Sq]."""
        return (self.maximum + (self.kept_mass + self.discarded_mass).log()).logsumexp(0)

    def all_kept(self) -> Tensor:
        """Count the kept elements of the whole rows, int32; 1 if nothing passed and the largest element stands in."""
        kept = self.kept.sum(0)
        # in a row without keys, or with scores of -inf alone, nothing can
        return torch.where((kept == 0) & (self.maximum.amax(0) != -torch.inf), 1, kept).int()


def with_room(given: Arguments) -> Arguments:
    """Give a cache without room for keys one row, which is not valid. A rank without keys may have such a cache.

    Raises:
        TopThetaValueError: the cache has no room, but a length above 0 is given.
    """
    axis, caches = 2 if given.input_layout == "BNSD" else 1, (given.key, given.value)
    if not all(isinstance(cache, Tensor) and cache.dim() > axis and cache.shape[axis] == 0 for cache in caches):
        return given
    asked = 0 if given.actual_seq_lengths is None else given.actual_seq_lengths
    lengths = asked if isinstance(asked, Tensor) else torch.as_tensor(asked, device="cpu")
    if host_can_read(lengths) and lengths.any():
        raise TopThetaValueError("actual_seq_lengths", "0, since the cache has no room", str(lengths.tolist()))
    key, value = (cache.new_zeros((*cache.shape[:axis], 1, *cache.shape[axis + 1 :])) for cache in caches)
    none = lengths.new_zeros(lengths.shape or len(key), dtype=torch.int64, device=key.device)
    scales: dict[str, Any] = {
        name: scale.new_zeros((*scale.shape[:2], 1))
        for name in Arguments._fields[ANTIQUANT_SCALES]
        if isinstance(scale := getattr(given, name), Tensor) and scale.dim() == 3 and scale.shape[2] == 0
    }
    return given._replace(key=key, value=value, actual_seq_lengths=none, **scales)
