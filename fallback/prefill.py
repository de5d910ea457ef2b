"""Top-Theta attention over a whole prompt, row by row: row i of a prompt is the decode step of its token.

Nothing is saved here (nearly every V row is needed by some row of a chunk); what counts is that every row
obeys the same rule as in decode, so that a prefill measures what decode would do. Rows are processed in
chunks, so memory does not grow with the square of the length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .compensation import compensate, estimate_discarded_mass, score_threshold
from .layout import count_group_rows, count_value_rows, head_block

_SCORES_PER_CHUNK = 1 << 20  # 4 MiB of float32 scores at a time: they stay in cache


class RowChunk(NamedTuple):
    """Consecutive query rows with everything a selection rule may look at."""

    rows: slice  # which query rows
    scores: Tensor  # [B, Hq, rows, S] float32, -inf outside the visible keys
    lse: Tensor  # [B, Hq, rows]
    first: Tensor  # [B, 1, 1] first visible key
    n: Tensor  # [B, 1, rows] visible keys, 0 for a padding row


#: A rule that says which elements of a chunk are kept, [B, Hq, rows, S].
Selector = Callable[[RowChunk], Tensor]


@dataclass(frozen=True)
class PrefillStats:
    """What a sparse prefill kept: kept [B, Hq, Q] and value_rows [B, Hkv, Q] as in decode, int32.

    ``group_rows`` [B, Hkv, Q] is the union over a whole KV group, of however many heads.
    """

    kept: Tensor
    value_rows: Tensor
    group_rows: Tensor


def prefill_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold_per_row: Tensor,
    *,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    vmc: bool = False,
) -> Tensor:
    """Causal Top-Theta attention of a prompt or a chunk of one; arguments as `toptheta_npu.prefill_attention`."""
    out, _ = prefill_attention_with_stats(
        query, key, value, threshold_per_row,
        actual_seq_lengths=actual_seq_lengths, key_start=key_start, scale_value=scale_value,
        placement=placement, sdc=sdc, sdc_gamma=sdc_gamma, discarded_mass=discarded_mass, vmc=vmc,
    )  # fmt: skip
    return out


def prefill_attention_with_stats(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold_per_row: Tensor,
    *,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    vmc: bool = False,
) -> tuple[Tensor, PrefillStats]:
    """As `prefill_attention`, and what every row kept."""
    batch, heads, rows, _ = query.shape
    threshold = threshold_per_row.expand(batch, heads, rows)

    def above_threshold(chunk: RowChunk) -> Tensor:
        theta = score_threshold(threshold[:, :, chunk.rows], chunk.lse, placement)
        return chunk.scores > theta.unsqueeze(-1)

    return select_and_attend(
        query, key, value, above_threshold,
        actual_seq_lengths=actual_seq_lengths, key_start=key_start, scale_value=scale_value, sdc=sdc,
        sdc_gamma=sdc_gamma, threshold=threshold, discarded_mass=discarded_mass, vmc=vmc,
    )  # fmt: skip


def select_and_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    select: Selector,
    *,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    scale_value: float | None = None,
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    threshold: Tensor | None = None,
    discarded_mass: Tensor | None = None,
    vmc: bool = False,
) -> tuple[Tensor, PrefillStats]:
    """Attention over the elements that any rule ``select`` keeps, with the same compensations and counts.

    A row for which the rule keeps nothing keeps its largest element. ``threshold`` and ``discarded_mass``
    [B, Hq, Q] serve sdc="exp_threshold" and sdc="offline".
    """
    batch, heads, rows, head_dim = query.shape
    kv_heads = key.shape[1]
    values = value.float()
    means = _running_mean(values, rows, actual_seq_lengths, key_start) if vmc else None
    finite, broken = _split_broken_rows(values)
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    kept = torch.empty((batch, heads, rows), dtype=torch.int32, device=query.device)
    value_rows = torch.empty((batch, kv_heads, rows), dtype=torch.int32, device=query.device)
    blocks = heads // kv_heads > head_block(head_dim)
    group_rows = torch.empty_like(value_rows) if blocks else value_rows
    for chunk in row_chunks(query, key, actual_seq_lengths, key_start, scale_value):
        here = (slice(None), slice(None), chunk.rows)
        keep = _never_empty(select(chunk), chunk)
        kept[here] = keep.sum(-1)
        value_rows[here] = count_value_rows(keep, kv_heads, head_dim)
        if blocks:
            group_rows[here] = count_group_rows(keep, kv_heads)
        numerator, kept_mass, exact, maximum = _weigh(chunk, keep, finite, broken)
        estimate = estimate_discarded_mass(
            sdc, exact, chunk.n, kept[here], maximum, maximum if threshold is None else threshold[here], sdc_gamma,
            None if discarded_mass is None else discarded_mass[here],
        )  # fmt: skip
        mean = None if means is None else means[here]
        out[here] = compensate(numerator, kept_mass.where(chunk.n > 0, 1.0), estimate, mean).to(query.dtype)
    return out, PrefillStats(kept, value_rows, group_rows)


def _weigh(
    chunk: RowChunk, keep: Tensor, finite: Tensor, broken: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """N [B, Hq, rows, D], and R, E and m [B, Hq, rows] of a chunk."""
    maximum = chunk.scores.amax(-1).where(chunk.n > 0, 0.0)
    exponentials = (chunk.scores - maximum.unsqueeze(-1)).exp_()
    total = exponentials.sum(-1)
    exponentials.mul_(keep)
    kept_mass = exponentials.sum(-1)
    numerator = _product(exponentials, finite)
    if broken is not None:
        numerator.masked_fill_(_product(keep.float(), broken) > 0, torch.nan)
    return numerator, kept_mass, (total - kept_mass).clamp_min(0.0), maximum


def row_chunks(
    query: Tensor,
    key: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    scale_value: float | None = None,
    rows_wanted: Tensor | None = None,
) -> Iterator[RowChunk]:
    """Scores of consecutive rows, causal and padded; the keys end with the query's own rows.

    Row i of Q rows sits at key position S - Q + i. ``rows_wanted`` (ascending) restricts to some rows;
    a chunk's ``rows`` then counts within them.
    """
    batch, heads, count, head_dim = query.shape
    kv_heads, capacity = key.shape[1:3]
    past = capacity - count
    positions = torch.arange(past, capacity, device=query.device)
    if rows_wanted is not None:
        query, positions = query[:, :, rows_wanted], positions[rows_wanted]
    first, last = _valid_range(batch, capacity, actual_seq_lengths, key_start, query.device)
    scale = 1 / math.sqrt(head_dim) if scale_value is None else scale_value
    keys = key.float()
    scaled = query.float() * scale
    size = max(1, min(256, _SCORES_PER_CHUNK // (batch * heads * capacity)))
    for begin in range(0, len(positions), size):
        rows = slice(begin, min(begin + size, len(positions)))
        row = positions[rows]
        span = int(row[-1]) + 1
        grouped = scaled[:, :, rows].unflatten(1, (kv_heads, -1)).flatten(2, 3)  # [B, Hkv, g*rows, D]
        with torch.autocast(query.device.type, enabled=False):
            scores = (grouped @ keys[:, :, :span].transpose(-1, -2)).view(batch, heads, len(row), span)
        column = torch.arange(span, device=query.device)
        visible = (column <= row[:, None]) & (column >= first) & (row[:, None] < last)  # [B, rows, span]
        scores.masked_fill_(~visible[:, None], -torch.inf)
        n = torch.where(row < last[..., 0], row + 1 - first[..., 0], 0).clamp_min(0)
        yield RowChunk(rows, scores, torch.logsumexp(scores, -1), first, n[:, None])


def _valid_range(
    batch: int, capacity: int, lengths: Tensor | None, starts: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """First and last+1 valid key of each sequence, [B, 1, 1]."""
    first = torch.zeros(batch, dtype=torch.long, device=device) if starts is None else starts.long()
    last = torch.full_like(first, capacity) if lengths is None else first + lengths.long()
    return first[:, None, None], last[:, None, None]


def _never_empty(keep: Tensor, chunk: RowChunk) -> Tensor:
    keep = keep & (chunk.scores > -torch.inf)
    empty = ~keep.any(-1, keepdim=True) & (chunk.n > 0).unsqueeze(-1)
    if not empty.any():
        return keep
    return keep | torch.zeros_like(keep).scatter_(-1, chunk.scores.argmax(-1, keepdim=True), empty)


def _product(weights: Tensor, rows: Tensor) -> Tensor:
    """[B, Hq, Q, S] times the first S of [B, Hkv, S', D], each query head with its own KV head."""
    batch, heads, count, span = weights.shape
    grouped = weights.view(batch, rows.shape[1], -1, span)
    with torch.autocast(weights.device.type, enabled=False):
        return (grouped @ rows[:, :, :span]).view(batch, heads, count, -1)


def _split_broken_rows(value: Tensor) -> tuple[Tensor, Tensor | None]:
    """V with NaN and infinite rows set to 0, and which rows those were, [B, Hkv, S, 1]; None if there are none.

    A product with a weight of 0 must not see what a row holds that is not kept: padding, or the future.
    """
    broken = ~value.isfinite().all(-1, keepdim=True)
    if not broken.any():
        return value, None
    return value.masked_fill(broken, 0.0), broken.float()


def _running_mean(value: Tensor, rows: int, lengths: Tensor | None, starts: Tensor | None) -> Tensor:
    """[B, Hkv, Q, D]: the mean of the V rows visible to each query row, its own included; 0 for padding rows."""
    capacity = value.shape[2]
    first, last = _valid_range(len(value), capacity, lengths, starts, value.device)
    position = torch.arange(capacity, device=value.device)
    valid = ((position >= first) & (position < last)).unsqueeze(-1)  # [B, 1, S, 1]
    count = (position + 1 - first).clamp_min(1).unsqueeze(-1)
    means = torch.where(valid, value, 0.0).cumsum(2) / count
    return torch.where(valid, means, 0.0)[:, :, capacity - rows :]
