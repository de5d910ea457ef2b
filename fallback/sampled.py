"""Estimates the LSE of a row from a sample of its keys, so that one pass over K can compare its scores.

The sample does not depend on how a row is split over cores, splits or ranks. Neither does the selection.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .compensation import add_sink

#: Keys of the sample: the first, where attention sinks lie, the newest, and some at equal distances between them.
FIRST, NEWEST, STRIDED = 16, 128, 256


class Sample(NamedTuple):
    """The sampled keys of rows [...].

    Attributes:
        places: int64 [..., keys], counted from the row's first key.
        log_weights: float32 [..., keys], the logarithm of the number of keys that each stands for; -inf for keys that
            a shorter row does not have.
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


def sampled_lse(scores: Tensor, counts: Tensor, first: Tensor, learnable_sink: Tensor | None = None) -> Tensor:
    """Estimate the LSE of rows from the scores of their sampled keys; it is exact for rows of up to 400 keys.

    Args:
        scores: [B, Hq, ..., S].
        counts: int64 [B, ...], number of visible keys of each row.
        first: int64 [B], index of the first visible key.
        learnable_sink: float32 [Hq], one more logit of every row.

    Returns:
        [B, Hq, ...]; -inf for rows without keys.

    Example:
        >>> scores, one = torch.randn(2, 4, 50), torch.tensor([0, 0])
        >>> torch.allclose(sampled_lse(scores, torch.tensor([50, 50]), one), scores.logsumexp(-1))
        True
    """
    sample = sampled_keys(counts)
    places = sample.places + first.view(-1, *[1] * (sample.places.dim() - 1))
    index = places.clamp_max(scores.shape[-1] - 1).unsqueeze(1)
    return add_sink(weighed_lse(scores.gather(-1, index.expand(*scores.shape[:-1], -1)), sample), learnable_sink)


def weighed_lse(scores: Tensor, sample: Sample) -> Tensor:
    """Compute the LSE of rows, [B, Hq, ...], from the scores [B, Hq, ..., keys] of their sample alone."""
    log_weights = sample.log_weights.to(scores).unsqueeze(1)
    # a place that a short row does not have may hold any score
    return torch.where(log_weights == -torch.inf, -torch.inf, scores + log_weights).logsumexp(-1)


def compared_lse(
    placement: str, scores: Tensor, counts: Tensor, first: Tensor, learnable_sink: Tensor | None = None
) -> Tensor | None:
    """Compute the LSE that turns scores into the probabilities of a placement, [B, Hq, ...]; None pre-softmax.

    Arguments are as in `sampled_lse`. Scores outside the visible keys must be -inf.
    """
    if placement == "pre_softmax":
        return None
    if placement == "sampled_softmax":
        return sampled_lse(scores, counts, first, learnable_sink)
    return add_sink(torch.logsumexp(scores, dim=-1), learnable_sink)
