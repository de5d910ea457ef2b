"""Top-Theta attention over a whole prompt, row by row: row i of a prompt is the decode step of its token.

This saves nothing, since some row of a chunk needs nearly every V row. But every row follows the same rule as in
decode, so a prefill measures what decode would do. Rows are processed in chunks, so memory does not grow with the
square of the length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .compensation import Compensation, score_threshold
from .layout import any_true, count_group_rows, count_true, count_value_rows, valid_range
from .reference import attention_scores, masses, never_empty, valid_keys, weighted_values
from .sampled import compared_lse, sampled_lse

_SCORES_PER_CHUNK = 1 << 20  # bounds the memory, however long the prompt is


class Prompt(NamedTuple):
    """Rows of a prompt, and the keys and values that they attend to.

    Attributes:
        query: [B, Hq, Q, D].
        key, value: [B, Hkv, S, D]; the last Q keys are the query's own tokens.
        actual_seq_lengths, key_start: int [B], number of valid keys and index of the first; None: no padding.
        scale_value: factor of q·k; None is 1 / sqrt(D).
        learnable_sink: [Hq], one more logit in each row's denominator.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    actual_seq_lengths: Tensor | None = None
    key_start: Tensor | None = None
    scale_value: float | None = None
    learnable_sink: Tensor | None = None


class RowChunk(NamedTuple):
    """Consecutive query rows with everything a selection rule may look at."""

    rows: slice  # which query rows
    query: Tensor  # [B, Hq, rows, D] float32
    key: Tensor  # [B, Hkv, S, D] float32; what scores do not show may hold anything
    scores: Tensor  # [B, Hq, rows, S] float32, -inf outside the visible keys
    visible: Tensor  # bool [B, 1, rows, S]
    first: Tensor  # [B, 1, 1] first visible key
    n: Tensor  # [B, 1, rows] visible keys, 0 for a padding row
    learnable_sink: Tensor | None = None  # [Hq] one more logit of every row

    def above(self, threshold: Tensor, placement: str) -> Tensor:
        """Find the elements above each row's threshold [B, Hq, rows], which is in score units or in probabilities."""
        lse = compared_lse(placement, *self._scores_of_keys, self.learnable_sink)
        return self.scores > score_threshold(threshold, lse, placement).unsqueeze(-1)

    def sampled_lse(self) -> Tensor:
        """Estimate the LSE of each row, [B, Hq, rows], from the scores of a sample of its keys."""
        return sampled_lse(*self._scores_of_keys, self.learnable_sink)

    @property
    def _scores_of_keys(self) -> tuple[Tensor, Tensor, Tensor]:
        """The scores, how many keys of each row they show [B, rows], and the first of them [B]."""
        return self.scores, self.n[:, 0], self.first.flatten()


#: A rule that says which elements of a chunk are kept, [B, Hq, rows, S].
Selector = Callable[[RowChunk], Tensor]


class PrefillStats(NamedTuple):
    """What a sparse prefill kept: kept [B, Hq, Q] and value_rows [B, Hkv, Q] as in decode, int32.

    ``group_rows`` [B, Hkv, Q] is the union over a whole KV group of any size. ``empty`` [B, Hq, Q] bool marks rows in
    which the rule kept nothing, so their largest element stands in.
    """

    kept: Tensor
    value_rows: Tensor
    group_rows: Tensor
    empty: Tensor


def prefill_attention(*arguments: Any, **options: Any) -> Tensor:
    """Compute causal Top-Theta attention of a prompt or a chunk of one.

    Arguments are as in `toptheta_npu.prefill_attention`, and must already be checked.
    """
    return prefill_attention_with_stats(*arguments, **options)[0]


def prefill_attention_with_stats(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold_per_row: Tensor,
    *,
    placement: str = "pre_softmax",
    **options: Any,
) -> tuple[Tensor, PrefillStats]:
    """Run `prefill_attention` and also return what rows kept; takes options of `Prompt` and `select_and_attend`."""
    of_prompt = {name: options.pop(name) for name in Prompt._fields if name in options}
    prompt = Prompt(query, key, value, **of_prompt)
    threshold = threshold_per_row.expand(query.shape[:3])

    def above_threshold(chunk: RowChunk) -> Tensor:
        return chunk.above(threshold[:, :, chunk.rows], placement)

    return select_and_attend(prompt, above_threshold, threshold=threshold, **options)


def select_and_attend(
    prompt: Prompt,
    select: Selector,
    *,
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    threshold: Tensor | None = None,
    discarded_mass: Tensor | None = None,
    vmc: bool = False,
) -> tuple[Tensor, PrefillStats]:
    """Attend to the elements that any rule ``select`` keeps, with the same compensations and counts.

    A row for which the rule keeps nothing keeps its largest element. ``threshold`` and ``discarded_mass``
    [B, Hq, Q] serve sdc="exp_threshold" and sdc="offline".
    """
    query, kv_heads, head_dim = prompt.query, prompt.key.shape[1], prompt.key.shape[3]
    values = prompt.value.float()
    means = _running_mean(prompt, values) if vmc else None
    rows = _ValueRows.of(values)
    outs: list[Tensor] = []
    stats: list[PrefillStats] = []
    for chunk in row_chunks(prompt):
        here = (slice(None), slice(None), chunk.rows)
        selected = select(chunk) & chunk.visible
        empty = ~any_true(selected, -1) & (chunk.n > 0)
        # reading a flag saves work on a CPU; on any other device it would wait for the device
        spared = query.is_cpu and not empty.any()
        keep = selected if spared else never_empty(selected, chunk.scores)
        kept = count_true(keep)
        # E counts every other element; without it, a rule may drop the largest ones however far they lie above the rest
        largest = None if sdc != "none" else chunk.scores.masked_fill(~keep, -torch.inf).amax(-1)
        maximum, weights, kept_mass, exact = masses(chunk.scores, keep, largest)
        mass, mean = (tensor if tensor is None else tensor[here] for tensor in (discarded_mass, means))
        theta = maximum if threshold is None else threshold[here]
        compensation = Compensation(sdc, sdc_gamma, mass, mean, prompt.learnable_sink)
        out = compensation.apply(rows.weighted(weights), kept_mass, exact, chunk.n, kept, maximum, theta)
        outs.append(out.to(query.dtype))
        group_rows = count_group_rows(keep, kv_heads)
        value_rows = count_value_rows(keep, kv_heads, head_dim)
        stats.append(PrefillStats(kept.int(), value_rows.int(), group_rows.int(), empty))
    return torch.cat(outs, 2), PrefillStats(*(torch.cat(parts, 2) for parts in zip(*stats, strict=True)))


def row_chunks(prompt: Prompt, rows_wanted: Tensor | None = None) -> Iterator[RowChunk]:
    """Yield the scores of consecutive rows, causal and padded; the keys end with the query's own rows.

    Row i of Q rows sits at key position S - Q + i. ``rows_wanted`` (ascending, on the CPU) restricts to some
    rows; a chunk's ``rows`` then counts within them.
    """
    query, key, learnable_sink = prompt.query, prompt.key, prompt.learnable_sink
    batch, heads, count, head_dim = query.shape
    capacity = key.shape[2]
    position = torch.arange(capacity, device=query.device)
    row_position = position[capacity - count :]
    # the same on the host, where reading a number does not wait for the device
    known = torch.arange(capacity - count, capacity, device="cpu")
    if rows_wanted is not None:
        here = rows_wanted.to(query.device)
        query, row_position, known = query[:, :, here], row_position[here], known[rows_wanted]
    starts, lengths = valid_range(query, capacity, prompt.key_start, prompt.actual_seq_lengths)
    valid = valid_keys(capacity, lengths, starts)[:, 0]  # [B, S]
    padded = prompt.key_start is not None or prompt.actual_seq_lengths is not None
    scale = 1 / math.sqrt(head_dim) if prompt.scale_value is None else prompt.scale_value
    queries, keys = query.float(), key.float()
    size = max(1, _SCORES_PER_CHUNK // (batch * heads * capacity))
    for begin in range(0, len(row_position), size):
        rows = slice(begin, min(begin + size, len(row_position)))
        row = row_position[rows]
        span = int(known[rows.stop - 1]) + 1
        visible = ((position[:span] <= row[:, None]) & valid[:, None, :span] & valid[:, row, None])[:, None]
        hidden_from = 0 if padded else int(known[begin]) + 1
        with torch.autocast(query.device.type, enabled=False):
            query_rows, visible_keys = queries[:, :, rows], keys[:, :, :span]
            scores = attention_scores(query_rows, visible_keys, scale)
        scores[..., hidden_from:].masked_fill_(~visible[..., hidden_from:], -torch.inf)
        counts = count_true(visible)
        first = starts[:, None, None]
        yield RowChunk(rows, query_rows, visible_keys, scores, visible, first, counts, learnable_sink)


class _ValueRows(NamedTuple):
    """V rows that may hold anything, such as padding or the future. A weight of 0 must cancel even NaN.

    Attributes:
        finite: [B, Hkv, S, D], 0 in rows that hold an infinity or NaN.
        broken: bool [B, Hkv, S, 1], these rows; None where there is none.
    """

    finite: Tensor
    broken: Tensor | None

    @classmethod
    def of(cls, values: Tensor) -> _ValueRows:
        if values.sum().isfinite():  # one look at all of them
            return cls(values, None)
        broken = ~values.isfinite().all(-1, keepdim=True)
        return cls(values.masked_fill(broken, 0.0), broken)

    def weighted(self, weights: Tensor) -> Tensor:
        """Compute the sums [B, Hq, rows, D] of the first rows times weights [B, Hq, rows, span]."""
        span = weights.shape[-1]
        with torch.autocast(weights.device.type, enabled=False):
            sums = weighted_values(weights, self.finite[:, :, :span])
            if self.broken is not None:
                sums.masked_fill_(weighted_values(weights, self.broken[:, :, :span].float()) > 0, torch.nan)
        return sums


def _running_mean(prompt: Prompt, value: Tensor) -> Tensor:
    """Compute the mean [B, Hkv, Q, D] of the V rows visible to each query row, its own included; 0 for padding rows."""
    capacity, rows = value.shape[2], prompt.query.shape[2]
    starts, lengths = valid_range(value, capacity, prompt.key_start, prompt.actual_seq_lengths)
    valid = valid_keys(capacity, lengths, starts).unsqueeze(-1)  # [B, 1, S, 1]
    values, before = torch.where(valid, value, 0.0), capacity - rows
    sums, counts = (
        each[:, :, :before].sum(2, keepdim=True) + each[:, :, before:].cumsum(2) for each in (values, valid.long())
    )
    return torch.where(valid[:, :, before:], sums / counts.clamp_min(1), 0.0)
