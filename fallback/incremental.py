"""Decode that reads only the surviving V rows.

The scores of a step are small (n floats per head) and stay in float32; what a decode step waits for is
the KV cache. K is read in full, V only where a score passed its threshold: the survivors' positions come
from `nonzero`, their weighted sum from one `embedding_bag`, over the cache itself where it is float32, else over
a float32 copy of just these rows.

A (sequence, KV head) that keeps more than `DENSE_ABOVE` of its elements takes a dense product instead,
since scattered reads of most rows cost more than one sweep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from .compensation import add_value_mean, estimate_discarded_mass, score_threshold
from .layout import KeyValueCache, count_value_rows, head_view, in_layout, query_heads
from .scores import attention_scores
from .scratch import scratch

DENSE_ABOVE = 1 / 3
_BAG = 1024  # survivors summed up at a time


@dataclass(frozen=True)
class _Scored:
    """The scores of a decode step. Row r is (sequence, query head)."""

    cache: KeyValueCache
    input_layout: str
    dtype: torch.dtype
    bounds: list[tuple[int, int]]  # first and last+1 valid key per sequence
    scores: Tensor  # [B, Hq, span] float32, -inf outside the valid keys

    @cached_property
    def n(self) -> Tensor:
        """[B, 1] valid keys."""
        return torch.tensor([[end - start] for start, end in self.bounds], device=self.scores.device)

    @cached_property
    def empty(self) -> Tensor | None:
        """[B, 1] rows without keys; None if there are none, as in nearly every step."""
        return self.n == 0 if any(start == end for start, end in self.bounds) else None

    def unless_empty(self, values: Tensor, otherwise: float) -> Tensor:
        """values [B, Hq], but ``otherwise`` in rows without keys."""
        return values if self.empty is None else values.masked_fill(self.empty, otherwise)

    @cached_property
    def maximum(self) -> Tensor:
        """[B, Hq], 0 for a row without keys."""
        return self.unless_empty(self.scores.amax(-1), 0.0)

    @cached_property
    def total(self) -> Tensor:
        """[B, Hq] R + E, the sum of exp(a - m) over all valid keys."""
        masses = scratch("masses", self.scores.shape, self.scores.dtype, self.scores.device)
        return torch.sub(self.scores, self.maximum.unsqueeze(-1), out=masses).exp_().sum(-1)

    @cached_property
    def lse(self) -> Tensor:
        """[B, Hq], -inf for a row without keys."""
        return self.unless_empty(self.maximum + self.total.log(), -torch.inf)


@dataclass(frozen=True)
class _Rows:
    """What a decode step knows of its rows before it touches V."""

    scored: _Scored
    threshold: Tensor  # [B, Hq] in score units
    survivors: Tensor  # flat indices into scores, ascending
    kept: Tensor  # [B, Hq], 1 where only the largest element stands in
    stands_in: Tensor  # [B, Hq] rows where nothing passed, so the largest element stands in

    @cached_property
    def row_of_survivor(self) -> Tensor:
        counts = self.kept.view(-1)
        numbers = torch.arange(counts.numel(), device=counts.device)
        return numbers.repeat_interleave(counts, output_size=self.survivors.numel())


def incremental_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    block_table: Tensor | None = None,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    path: str = "auto",
) -> Tensor:
    """One decode step of Top-Theta attention; arguments and result as `toptheta_npu.incremental_attention`.

    Arguments are taken as already checked. ``path`` forces "gather" or "dense" for the V product.
    """
    rows = _select_rows(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, None,
        num_heads, num_key_value_heads, input_layout, scale_value, placement,
    )  # fmt: skip
    return _compensated(rows, sdc, sdc_gamma, discarded_mass, value_mean, path)


def incremental_attention_with_stats(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    block_table: Tensor | None = None,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    path: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `incremental_attention`, and (lse [B, Hq], kept [B, Hq] int32, value_rows [B, Hkv] int32)."""
    rows = _select_rows(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, None,
        num_heads, num_key_value_heads, input_layout, scale_value, placement,
    )  # fmt: skip
    out = _compensated(rows, sdc, sdc_gamma, discarded_mass, value_mean, path)
    return out, rows.scored.lse, rows.kept.int(), _count_value_rows(rows)


def incremental_attention_partial(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    block_table: Tensor | None = None,
    lse: Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    path: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The part of a decode step over some of a row's keys: (out = N/R float32, m, R, E [B, Hq], kept int32).

    Where nothing passes, kept and R are 0, E is all the mass and out is V of the largest element.
    ``lse`` [B, Hq] is the whole row's, needed post-softmax.
    """
    rows = _select_rows(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, lse,
        num_heads, num_key_value_heads, input_layout, scale_value, placement,
    )  # fmt: skip
    scored = rows.scored
    weights, kept_mass = _kept_masses(rows)
    out = _weighted_values(rows, weights, scored.unless_empty(kept_mass, 1.0), path)
    return (
        in_layout(out, input_layout),
        scored.unless_empty(scored.maximum, -torch.inf),
        torch.where(rows.stands_in, 0.0, kept_mass),
        torch.where(rows.stands_in, scored.total, _discarded_mass(rows, kept_mass)),
        torch.where(rows.stands_in, 0, rows.kept).int(),
    )


def _compensated(
    rows: _Rows,
    sdc: str,
    sdc_gamma: float,
    discarded_mass: Tensor | None,
    value_mean: Tensor | None,
    path: str,
) -> Tensor:
    scored = rows.scored
    weights, kept_mass = _kept_masses(rows)
    exact = _discarded_mass(rows, kept_mass) if sdc == "exact" else kept_mass
    estimate = estimate_discarded_mass(
        sdc, exact, scored.n, rows.kept, scored.maximum, rows.threshold, sdc_gamma, discarded_mass
    )
    # a row without keys has no mass at all: its output is 0, not 0/0
    denominator = scored.unless_empty(kept_mass + estimate, 1.0)
    out = _weighted_values(rows, weights, denominator, path)
    out = add_value_mean(out, estimate / denominator, value_mean)
    return in_layout(out.to(scored.dtype), scored.input_layout)


def _cache(
    key: Tensor, value: Tensor, block_table: Tensor | None, input_layout: str, num_key_value_heads: int
) -> KeyValueCache:
    """The cache of any layout; block numbers are clamped to it, as lengths are."""
    paged = block_table is not None
    return KeyValueCache(
        head_view(key, input_layout, num_key_value_heads, paged=paged),
        head_view(value, input_layout, num_key_value_heads, paged=paged),
        None if block_table is None else block_table.clamp(0, len(key) - 1),
    )


def _select_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None,
    key_start: Tensor | None,
    block_table: Tensor | None,
    row_lse: Tensor | None,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str,
    scale_value: float | None,
    placement: str,
) -> _Rows:
    """The scores and the survivors of every row."""
    heads = query_heads(query, input_layout, num_heads)
    cache = _cache(key, value, block_table, input_layout, num_key_value_heads)
    bounds = _valid_bounds(len(heads), cache.capacity, actual_seq_lengths, key_start)
    scale = 1 / math.sqrt(heads.shape[-1]) if scale_value is None else scale_value
    scores = attention_scores(heads.float() * scale, cache, bounds)

    scored = _Scored(cache, input_layout, query.dtype, bounds, scores)
    if placement == "post_softmax" and row_lse is None:
        row_lse = scored.lse
    theta = score_threshold(threshold.expand(len(heads), num_heads), row_lse, placement)
    return _Rows(scored, theta, *_survivors(scored, theta))


def _valid_bounds(
    batch: int, capacity: int, actual_seq_lengths: Tensor | None, key_start: Tensor | None
) -> list[tuple[int, int]]:
    """First and last+1 valid key of each sequence, clamped to the cache."""
    starts = [0] * batch if key_start is None else key_start.clamp(0, capacity).tolist()
    if actual_seq_lengths is None:
        return [(start, capacity) for start in starts]
    lengths = actual_seq_lengths.clamp(min=0).tolist()
    return [(start, min(start + length, capacity)) for start, length in zip(starts, lengths, strict=True)]


def _survivors(scored: _Scored, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Flat indices of the kept elements, how many per row, and which rows had to keep their largest instead."""
    scores = scored.scores
    keep = scratch("keep", scores.shape, torch.bool, scores.device)
    torch.gt(scores, theta.unsqueeze(-1), out=keep)
    indices, kept = _indices_and_counts(keep)
    stands_in = kept == 0 if scored.empty is None else (kept == 0) & ~scored.empty
    if stands_in.any():
        largest = scores.argmax(-1, keepdim=True)
        keep |= torch.zeros_like(keep).scatter_(-1, largest, stands_in.unsqueeze(-1))
        indices, kept = _indices_and_counts(keep)
    return indices, kept, stands_in


def _indices_and_counts(keep: Tensor) -> tuple[Tensor, Tensor]:
    indices = keep.view(-1).nonzero().view(-1)
    span, rows = keep.shape[-1], keep.shape[:-1].numel()
    edges = torch.arange(0, (rows + 1) * span, span, device=keep.device)
    # searching the sorted indices is far cheaper than summing a boolean mask
    kept = torch.searchsorted(indices, edges).diff()
    return indices, kept.view(keep.shape[:-1])


def _kept_masses(rows: _Rows) -> tuple[Tensor, Tensor]:
    """exp(a - m) of every survivor, and R of every row [B, Hq]."""
    row, scored = rows.row_of_survivor, rows.scored
    # index_select is several times faster than indexing with brackets
    scores = scored.scores.view(-1).index_select(0, rows.survivors)
    weights = scores.sub_(scored.maximum.view(-1).index_select(0, row)).exp_()
    # thousands of masses are added one by one; NPUs have no float64
    dtype = torch.float32 if weights.device.type == "npu" else torch.float64
    kept_mass = torch.zeros(rows.kept.numel(), dtype=dtype, device=weights.device)
    return weights, kept_mass.index_add_(0, row, weights.to(dtype)).float().view_as(rows.kept)


def _discarded_mass(rows: _Rows, kept_mass: Tensor) -> Tensor:
    """E of every row [B, Hq]; exactly 0 where everything is kept."""
    return torch.where(rows.kept == rows.scored.n, 0.0, (rows.scored.total - kept_mass).clamp_min(0.0))


def _weighted_values(rows: _Rows, weights: Tensor, denominator: Tensor, path: str) -> Tensor:
    """Sum of weights times V rows over the denominator, [B, Hq, D] float32."""
    dense = _dense_pairs(rows, path)
    out = _gathered_values(rows, weights, dense)
    if dense:
        _multiply_densely(rows, weights, dense, out)
    return out.div_(denominator.unsqueeze(-1))


def _dense_pairs(rows: _Rows, path: str) -> dict[int, list[int]]:
    """By sequence the KV heads that multiply all their V rows instead of gathering."""
    if path == "gather":
        return {}
    kv_heads = rows.scored.cache.num_key_value_heads
    kept = rows.kept.view(len(rows.kept), kv_heads, -1)
    # a row with keys keeps at least one of them, a row without none
    limit = 0.0 if path == "dense" else DENSE_ABOVE * kept.shape[-1]
    pairs: dict[int, list[int]] = {}
    if len(rows.survivors) <= limit * min(end - start for start, end in rows.scored.bounds):
        return pairs  # not even all of them in one place would do
    for sequence, (counts, (start, end)) in enumerate(zip(kept.sum(-1).tolist(), rows.scored.bounds, strict=True)):
        heads = [head for head, count in enumerate(counts) if count > limit * (end - start)]
        if heads:
            pairs[sequence] = heads
    return pairs


def _multiply_densely(rows: _Rows, weights: Tensor, dense: dict[int, list[int]], out: Tensor) -> None:
    """The dense pairs' rows of out [B, Hq, D]."""
    scored = rows.scored
    matrix = scratch("matrix", scored.scores.shape, weights.dtype, weights.device).zero_()
    matrix.view(-1)[rows.survivors] = weights
    group = out.shape[1] // scored.cache.num_key_value_heads
    for sequence, kv_heads in dense.items():
        start, end = scored.bounds[sequence]
        values = scored.cache.value_rows(sequence, start, end)
        for head in kv_heads:
            heads = slice(head * group, (head + 1) * group)
            out[sequence, heads] = matrix[sequence, heads, start:end] @ _in_float32(values[head])


def _gathered_values(rows: _Rows, weights: Tensor, dense: dict[int, list[int]]) -> Tensor:
    """The rows that are not dense, read one survivor at a time; 0 for the others."""
    batch, heads = rows.kept.shape
    row, scored = rows.row_of_survivor, rows.scored
    survivors, counts = rows.survivors, rows.kept.view(-1)
    if dense:
        sparse = torch.ones_like(rows.kept, dtype=torch.bool)
        for sequence, kv_heads in dense.items():
            sparse.view(batch, scored.cache.num_key_value_heads, -1)[sequence, kv_heads] = False
        sparse = sparse.view(-1)
        chosen = sparse[row]
        row, survivors, weights = row[chosen], survivors[chosen], weights[chosen]
        counts = counts * sparse
    table, index = scored.cache.locate_values(survivors, row, heads, scored.scores.shape[-1])
    if table.dtype != torch.float32:
        # weights and sums in half precision would lose what the float32 scores bought
        table, index = _picked_rows(table, index), torch.arange(len(index), device=index.device)
    return _sum_rows(index, table, weights, row, counts).view(batch, heads, -1)


def _picked_rows(table: Tensor, index: Tensor) -> Tensor:
    """These rows of the table in float32."""
    rows = scratch("V rows", (len(index), table.shape[1]), table.dtype, table.device)
    return _in_float32(torch.index_select(table, 0, index, out=rows))


def _in_float32(rows: Tensor) -> Tensor:
    if rows.dtype == torch.float32:
        return rows
    return scratch("V rows, converted", rows.shape, torch.float32, rows.device).copy_(rows)


def _sum_rows(index: Tensor, table: Tensor, weights: Tensor, row: Tensor, counts: Tensor) -> Tensor:
    """Per row the sum of weights times the table's rows, [rows, D] float32."""
    if len(row) <= _BAG or int(counts.max()) <= _BAG:
        offsets = counts.cumsum(0) - counts
        return F.embedding_bag(index, table, offsets, mode="sum", per_sample_weights=weights)
    # one running float32 sum over a long row would drift: sum it in bags of limited size
    cuts = torch.arange(0, len(row), _BAG, device=row.device)
    begins = row.diff(prepend=row.new_full((1,), -1)).nonzero().view(-1)
    offsets = torch.cat((cuts, begins)).unique()
    sums = F.embedding_bag(index, table, offsets, mode="sum", per_sample_weights=weights)
    return sums.new_zeros((len(counts), table.shape[1])).index_add_(0, row[offsets], sums)


def _count_value_rows(rows: _Rows) -> Tensor:
    """[B, Hkv] int32."""
    cache = rows.scored.cache
    keep = torch.zeros_like(rows.scored.scores, dtype=torch.bool)
    keep.view(-1)[rows.survivors] = True
    return count_value_rows(keep, cache.num_key_value_heads, cache.key.shape[3]).int()
