"""The oracle: Top-Theta decode attention written down as the paper states it.

Everything is dense and slow on purpose, and works in the dtype of its inputs (float64 in the tests).
Symbols: a = scores, n = valid keys, k~ = kept elements, m = max a, R and E = sums of exp(a - m) over the
kept and the discarded elements, mu = mean V row.

Shapes: query [B, Hq, D]; key, value [B, Hkv, S, D]; threshold [B, Hq]; lengths, starts [B].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .compensation import compensate, estimate_discarded_mass, score_threshold
from .layout import count_value_rows

NEG_INF = float("-inf")


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
    """[B, 1, S]: key j of sequence b is valid when start_b <= j < start_b + n_b."""
    position = torch.arange(capacity, device=lengths.device)
    first, last = starts[:, None, None], (starts + lengths)[:, None, None]
    return (position >= first) & (position < last)


def attention_scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """[B, Hq, S]: a = scale q·k, each query head against the K of its group (paper eq. attn_pre_softmax)."""
    group = query.shape[1] // key.shape[1]
    return scale * torch.einsum("bhd,bhsd->bhs", query, key.repeat_interleave(group, dim=1))


def log_sum_exp(scores: Tensor) -> Tensor:
    """[B, Hq]: the logarithm of the denominator of the softmax (paper eq. attn_post_softmax)."""
    return torch.logsumexp(scores, dim=-1)


def select(scores: Tensor, threshold: Tensor, valid: Tensor) -> Tensor:
    """[B, Hq, S]: keep a_i > theta; a row that keeps nothing keeps its largest element, lowest index first."""
    keep = (scores > threshold[..., None]) & valid
    fallback = torch.zeros_like(keep).scatter(-1, scores.argmax(-1, keepdim=True), True) & valid
    return torch.where(keep.any(-1, keepdim=True), keep, fallback)


def incremental_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    *,
    lengths: Tensor | None = None,
    starts: Tensor | None = None,
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    row_lse: Tensor | None = None,
) -> ReferenceResult:
    """One decode step of Top-Theta attention (paper section Top-Theta Attention Inference).

    ``row_lse`` [B, Hq] replaces the LSE in the post-softmax test where the keys are a part of a longer row.
    """
    batch, heads, head_dim = query.shape
    capacity, kv_heads = key.shape[2], key.shape[1]
    starts = torch.zeros(batch, dtype=torch.long) if starts is None else starts.long()
    lengths = capacity - starts if lengths is None else lengths.long()
    scale = 1 / math.sqrt(head_dim) if scale_value is None else scale_value
    valid = valid_keys(capacity, lengths, starts)
    n = lengths[:, None]

    # rows outside the valid range may hold anything, NaN too
    outside = ~valid[..., None]
    scores = attention_scores(query, key.masked_fill(outside, 0), scale).masked_fill(~valid, NEG_INF)
    lse = log_sum_exp(scores)
    theta = score_threshold(threshold.to(scores), lse if row_lse is None else row_lse, placement)
    keep = select(scores, theta, valid)
    kept = keep.sum(-1)

    maximum = scores.amax(-1)
    exponentials = torch.where(n[..., None] > 0, (scores - maximum[..., None]).exp(), 0.0)
    kept_mass = (exponentials * keep).sum(-1)
    exact = (exponentials * ~keep).sum(-1)
    estimate = estimate_discarded_mass(
        sdc, exact, n, kept, maximum, theta, sdc_gamma, None if discarded_mass is None else discarded_mass.to(scores)
    )
    group_value = torch.where(keep[..., None], value.repeat_interleave(heads // kv_heads, dim=1), 0.0)
    numerator = torch.einsum("bhs,bhsd->bhd", exponentials * keep, group_value)
    mean = None if value_mean is None else value_mean.to(scores)
    out = compensate(numerator, kept_mass, estimate, mean)
    out = torch.where(n[..., None] > 0, out, 0.0)
    rows = count_value_rows(keep, kv_heads, head_dim)
    return ReferenceResult(out, keep, lse, kept, rows, maximum, kept_mass, exact)
