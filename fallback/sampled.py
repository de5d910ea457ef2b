"""The LSE of a row estimated from a sample of its keys, so that one pass over K knows what to compare its scores with.

The sample does not depend on how a row is split over cores, splits or ranks, and neither does what it selects.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .antiquant import dequantise
from .reference import log_sum_exp

#: Keys of the sample: the first, where attention sinks lie, the newest, and some at equal distances between them.
FIRST, NEWEST, STRIDED = 16, 128, 256


class Sample(NamedTuple):
    """The sampled keys of rows [...].

    Attributes:
        places: int64 [..., keys], from the row's first key on.
        log_weights: float32 [..., keys], the logarithm of how many keys each stands for; -inf for those that a shorter
            row does not have.
    """

    places: Tensor
    log_weights: Tensor


def sampled_keys(counts: Tensor) -> Sample:
    """Choose the keys of the sample for rows of ``counts`` [...] visible keys, int64.

    Example:
        >>> sampled_keys(torch.tensor([20, 5000])).log_weights.exp().sum(-1)
        tensor([  20., 5000.])
    """
    counts = counts.unsqueeze(-1)
    first, newest, strided = (torch.arange(size, device=counts.device) for size in (FIRST, NEWEST, STRIDED))
    between = (counts - FIRST - NEWEST).clamp_min(0)
    taken = between.clamp_max(STRIDED)
    from_end = counts - 1 - newest
    places = [first.expand(*counts.shape[:-1], -1), FIRST + strided * between // taken.clamp_min(1), from_end]
    there = [first < counts, strided < taken, from_end >= FIRST]
    stands_for = (between / taken.clamp_min(1)).log()
    weights = [torch.zeros_like(stands_for), stands_for, torch.zeros_like(stands_for)]
    log_weights = [
        torch.where(known, weight, -torch.inf).expand(known.shape)
        for known, weight in zip(there, weights, strict=True)
    ]  # fmt: skip
    inside = torch.cat(places, -1).clamp_min(0).minimum((counts - 1).clamp_min(0))
    return Sample(inside, torch.cat(log_weights, -1).float())


def sampled_lse(
    query: Tensor,
    key: Tensor,
    sample: Sample,
    *,
    key_start: Tensor | None = None,
    scale_value: float | None = None,
    learnable_sink: Tensor | None = None,
    key_scale: Tensor | None = None,
) -> Tensor:
    """Estimate the LSE of rows from the sample of their keys; it is exact for rows of up to 400 keys.

    Args:
        query: [B, Hq, Q, D].
        key: [B, Hkv, S, D] of any dtype, int8 with ``key_scale``.
        sample: of rows [B, Q]; the layers of a model may share it.
        key_start: int64 [B], the first visible key; None: 0.
        scale_value: of q·k; None: 1/sqrt(D).
        learnable_sink: float32 [Hq], one more logit of every row.
        key_scale: what broadcasts to [B, Hkv, S, D].

    Returns:
        float32 [B, Hq, Q]; -inf for rows without keys.

    Example:
        >>> query, key = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 50, 8)
        >>> exact = (query.view(2, 2, 2, 8) @ key.mT / 8**0.5).logsumexp(-1).view(2, 4, 1)
        >>> torch.allclose(sampled_lse(query, key, sampled_keys(torch.full((2, 1), 50))), exact, atol=1e-5)
        True
    """
    (batch, heads, tokens, head_dim), kv_heads = query.shape, key.shape[1]
    places = sample.places if key_start is None else sample.places + key_start[:, None, None]
    rows = _rows_at(key, places.flatten(1))
    scale_rows = None if key_scale is None else _rows_at(key_scale.expand(*key.shape[:3], -1), places.flatten(1))
    keys = dequantise(rows, scale_rows).view(batch, kv_heads, tokens, -1, head_dim)
    scale = 1 / math.sqrt(head_dim) if scale_value is None else scale_value
    queries = (scale * query.float()).view(batch, kv_heads, heads // kv_heads, tokens, head_dim).transpose(2, 3)
    with torch.autocast(query.device.type, enabled=False):
        scores = (queries @ keys.mT).transpose(2, 3).flatten(1, 2)
    return log_sum_exp(scores + sample.log_weights[:, None], learnable_sink)


def _rows_at(rows: Tensor, places: Tensor) -> Tensor:
    """Take rows [B, Hkv, K, D] of [B, Hkv, S, D] at places [B, K] that all heads share."""
    (batch, heads, span, head_dim), steps = rows.shape, rows.stride()
    if steps[3] != 1 or any(step % head_dim for step in steps[:3]):
        return rows.gather(2, places[:, None, :, None].expand(-1, heads, -1, head_dim))
    # as rows of one matrix, which PyTorch takes ten times as fast
    of_batch, of_head, of_row = (step // head_dim for step in steps[:3])
    last = (batch - 1) * of_batch + (heads - 1) * of_head + (span - 1) * of_row
    matrix = rows.as_strided((last + 1, head_dim), (head_dim, 1))
    first = torch.arange(batch, device=rows.device)[:, None] * of_batch
    first = first + torch.arange(heads, device=rows.device) * of_head
    index = first[:, :, None] + places[:, None] * of_row
    return matrix.index_select(0, index.flatten()).view(batch, heads, -1, head_dim)


def as_scores(tau: Tensor, lse: Tensor) -> Tensor:
    """Turn probabilities into scores by an LSE of the same shape; what is -inf, of rows that keep all, stays so."""
    return torch.where(tau > 0, tau.log() + lse, -torch.inf)
