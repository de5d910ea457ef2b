"""The oracle: Top-Theta decode attention written down as the paper states it.

`incremental_attention` is dense and slow on purpose, and works in the dtype of its inputs (float64 in the tests). It
takes one token; run it once per token for several. The other modules use the equations before it, too. There "..."
stands for the query rows of a prompt, or the tokens of a step.
Symbols: a = scores, n = valid keys, k~ = kept elements, m = max a, R and E = sums of exp(a - m) over the
kept and the discarded elements, mu = mean V row.

Shapes are as in `Rows`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .compensation import Compensation, add_sink, compensate, estimate_discarded_mass, score_threshold, sink_mass
from .layout import any_true, count_true, count_value_rows, valid_range
from .sampled import sampled_lse

NEG_INF = float("-inf")
#: Uses the exact discarded mass, and nothing else.
EXACT = Compensation()


class Rows(NamedTuple):
    """The rows of a decode step, without layouts and pages.

    Attributes:
        query: [B, Hq, D].
        key, value: [B, Hkv, S, D].
        threshold: [B, Hq].
        lengths, starts: [B], number of valid keys and index of the first; None: all.
        scale_value: factor of q·k; None is 1 / sqrt(D).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    threshold: Tensor
    lengths: Tensor | None = None
    starts: Tensor | None = None
    scale_value: float | None = None


class ReferenceResult(NamedTuple):
    """Everything a test may compare: out [B, Hq, D]; keep [B, Hq, S]; the rest [B, Hq], value_rows [B, Hkv]."""

    out: Tensor
    keep: Tensor
    lse: Tensor
    kept: Tensor
    value_rows: Tensor
    maximum: Tensor
    kept_mass: Tensor
    discarded_mass: Tensor


def valid_keys(capacity: int, lengths: Tensor, starts: Tensor) -> Tensor:
    """Mark the valid keys, [B, 1, ..., S]: key j of sequence b is valid when start_b <= j < start_b + n_b.

    ``lengths`` [B] are n; or [B, ...], of each token.
    """
    position = torch.arange(capacity, device=lengths.device)
    first = starts.view(-1, *[1] * lengths.dim())
    return ((position >= first) & (position < first + lengths[..., None])).unsqueeze(1)


def attention_scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Compute a = scale q·k [B, Hq, ..., S], each query head with the K of its group (paper eq. attn_pre_softmax)."""
    grouped = (scale * query).unflatten(1, (key.shape[1], -1))
    return torch.einsum("bkg...d,bksd->bkg...s", grouped, key).flatten(1, 2)


def log_sum_exp(scores: Tensor, learnable_sink: Tensor | None = None) -> Tensor:
    """Compute the logarithm of the softmax's denominator, [B, Hq, ...], with its sink (paper eq. attn_post_softmax)."""
    return add_sink(torch.logsumexp(scores, dim=-1), learnable_sink)


def select(scores: Tensor, threshold: Tensor) -> Tensor:
    """Keep a_i > theta, and at least one element: [B, Hq, S]. Scores outside the valid keys are -inf."""
    return never_empty(scores > threshold[..., None], scores)


def never_empty(keep: Tensor, scores: Tensor) -> Tensor:
    """Let a row that keeps nothing keep its largest element, lowest index first. Only rows without keys stay empty."""
    largest, index = scores.max(-1, keepdim=True)
    stands_in = ~any_true(keep, -1, keepdim=True) & (largest != NEG_INF)
    return keep | torch.zeros_like(keep).scatter(-1, index, stands_in)


def masses(scores: Tensor, keep: Tensor, largest: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute m; the weights [B, Hq, S], exp(a - m) of the kept elements and 0 for the others; R and E.

    If ``largest`` [B, Hq] is given, it is m. Elements above it count in E as if they were equal to it.
    """
    maximum = scores.amax(-1) if largest is None else largest
    # in a row without keys m is -inf, and all exponentials are 0
    below = scores - maximum.masked_fill(maximum == NEG_INF, 0.0)[..., None]
    exponentials = (below if largest is None else below.clamp_max_(0.0)).exp_()
    weights = torch.where(keep, exponentials, 0.0)
    return maximum, weights, weights.sum(-1), exponentials.sub_(weights).sum(-1)


def weighted_values(weights: Tensor, value: Tensor) -> Tensor:
    """Compute N [B, Hq, ..., D], the sum of weights times V rows, each query head with the V of its group."""
    grouped = weights.unflatten(1, (value.shape[1], -1))
    return torch.einsum("bkg...s,bksd->bkg...d", grouped, value).flatten(1, 2)


def incremental_attention(
    rows: Rows,
    compensation: Compensation = EXACT,
    *,
    placement: str = "pre_softmax",
    row_lse: Tensor | None = None,
) -> ReferenceResult:
    """Run one decode step of Top-Theta attention (paper section Top-Theta Attention Inference).

    ``row_lse`` [B, Hq] replaces the LSE in the post-softmax test, for keys that are part of a longer row.
    """
    query, key, value = rows[:3]
    heads, head_dim = query.shape[1:]
    capacity, kv_heads = key.shape[2], key.shape[1]
    starts, lengths = valid_range(query, capacity, rows.starts, rows.lengths)
    scale = 1 / math.sqrt(head_dim) if rows.scale_value is None else rows.scale_value
    valid = valid_keys(capacity, lengths, starts)

    # rows outside the valid range may hold anything, NaN too
    outside = ~valid[..., None]
    scores = attention_scores(query, key.masked_fill(outside, 0), scale).masked_fill(~valid, NEG_INF)
    sdc, gamma, offline, value_mean, learnable_sink = compensation
    lse = log_sum_exp(scores, learnable_sink)
    if placement == "sampled_softmax":
        row_lse = sampled_lse(scores, lengths, starts, learnable_sink)
    theta = score_threshold(rows.threshold.to(scores), lse if row_lse is None else row_lse, placement)
    keep = select(scores, theta)
    kept = count_true(keep)

    maximum, weights, kept_mass, exact = masses(scores, keep)
    estimate = estimate_discarded_mass(
        sdc, exact, lengths[:, None], kept, maximum, theta, gamma, None if offline is None else offline.to(scores)
    )
    # a head never sees the V rows that it does not keep
    group_value = torch.where(keep[..., None], value.repeat_interleave(heads // kv_heads, dim=1), 0.0)
    out = compensate(
        weighted_values(weights, group_value),
        kept_mass,
        estimate,
        None if value_mean is None else value_mean.to(scores),
        sink_mass(learnable_sink, maximum),
    )
    value_rows = count_value_rows(keep, kv_heads, head_dim)
    return ReferenceResult(out, keep, lse, kept, value_rows, maximum, kept_mass, exact)
