"""A rank's share of a decode step, and what all ranks found in theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._value_checks import are_seen, cache_capacity
from ..errors import TopThetaValueError
from ..fallback import Partial
from ..fallback.layout import valid_range
from ..operator import incremental_attention_partial, incremental_attention_with_stats

_PER_SEQUENCE = ("actual_seq_lengths", "key_start", "block_table")


@dataclass(frozen=True)
class Share:
    """A rank's keys, and the arguments of the operators that say where they lie."""

    query: Tensor
    key: Tensor
    value: Tensor
    head_dim: int
    where: Mapping[str, Any]

    def sizes(self) -> dict[str, Any]:
        """What all ranks have in common."""
        return {
            "batch": len(self.query), "num_heads": self.where["num_heads"],
            "num_key_value_heads": self.where["num_key_value_heads"], "head_dim": self.head_dim,
            "dtype": str(self.query.dtype),
        }  # fmt: skip

    def lse(self, threshold: Tensor) -> Tensor:
        """The LSE of this rank's keys, [B, Hq]; all of K is read, and one V row per head."""
        never = torch.full_like(threshold, torch.inf)
        return incremental_attention_with_stats(self.query, self.key, self.value, never, **self.where)[1]

    def partial(self, threshold: Tensor, placement: str = "pre_softmax", lse: Tensor | None = None) -> Partial:
        """What `merge_partials` needs of this rank's keys."""
        return incremental_attention_partial(
            self.query, self.key, self.value, threshold, **self.where, placement=placement, lse=lse
        )

    @property
    def n(self) -> Tensor:
        """Valid keys, int32 [B]; clamped to the cache, as the operators do it on devices."""
        where = self.where
        capacity = cache_capacity(self.key, where["input_layout"], where["block_table"])
        return valid_range(self.query, capacity, where["key_start"], where["actual_seq_lengths"])[1].int()

    def of(self, sequence: int, value: Tensor) -> Share:
        """The share of one sequence of the batch, over another ``value``."""
        one = slice(sequence, sequence + 1)
        cut = {name: self.where[name][one] for name in _PER_SEQUENCE if self.where[name] is not None}
        key = self.key[one] if self.where["block_table"] is None else self.key
        return Share(self.query[one], key, value, self.head_dim, {**self.where, **cut})


class Parts(NamedTuple):
    """What all ranks found, each field with the ranks as its first dimension; ``n`` [w, B] are their valid keys."""

    out: Tensor
    maximum: Tensor
    kept_mass: Tensor
    discarded_mass: Tensor
    kept: Tensor
    n: Tensor

    def by_rank(self) -> list[Partial]:
        """As `merge_partials` takes them."""
        return [Partial(*part) for part in zip(*self[:5], strict=True)]

    def lse(self) -> Tensor:
        """The LSE of the whole rows, [B, Hq]."""
        return (self.maximum + (self.kept_mass + self.discarded_mass).log()).logsumexp(0)

    def all_kept(self) -> Tensor:
        """Kept elements of the whole rows, int32 [B, Hq]; where nothing passed, the one that stands in."""
        kept = self.kept.sum(0)
        # in a row without keys, or with scores of -inf alone, nothing can
        return torch.where((kept == 0) & (self.maximum.amax(0) != -torch.inf), 1, kept).int()


def with_room(
    key: Tensor, value: Tensor, lengths: Tensor | Sequence[int] | None, input_layout: str
) -> tuple[Tensor, Tensor, Tensor | Sequence[int] | None]:
    """A rank that holds no keys may have a cache without room for any: it gets one row, which is not valid.

    Raises:
        TopThetaValueError: there is no room, but a length.
    """
    axis, caches = 2 if input_layout == "BNSD" else 1, (key, value)
    if not all(isinstance(cache, Tensor) and cache.dim() > axis and cache.shape[axis] == 0 for cache in caches):
        return key, value, lengths
    given = torch.as_tensor(0 if lengths is None else lengths)
    if are_seen(given) and given.any():
        raise TopThetaValueError("actual_seq_lengths", "0, since the cache has no room", str(given.tolist()))
    key, value = (cache.new_zeros((*cache.shape[:axis], 1, *cache.shape[axis + 1 :])) for cache in caches)
    return key, value, torch.zeros(len(key), dtype=torch.int64, device=key.device)
