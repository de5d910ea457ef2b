"""Merging the parts of a split row: split-KV decoding and context parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .compensation import Compensation


class Partial(NamedTuple):
    """The result of a decode step over a part of the keys; statistics are [B, Hq], or [B, Hq, Sq] of several tokens.

    A part in which nothing passed has kept 0 and kept_mass 0, all its mass in discarded_mass, and the V
    row of its largest element in out.
    """

    out: Tensor  # N / R, float32, in the layout of the query
    maximum: Tensor
    kept_mass: Tensor
    discarded_mass: Tensor
    kept: Tensor


def merge_partials(
    parts: Sequence[Partial],
    threshold: Tensor,
    n: Tensor,
    compensation: Compensation,
) -> Tensor:
    """Merge the whole rows' output [B, Hq, Sq, D] float32 from their parts. Compensation is applied here, once.

    Args:
        parts: with out as [B, Hq, Sq, D] and statistics as [B, Hq, Sq], in the order of their keys.
        threshold: [B, Hq, Sq] in score units (used by sdc="exp_threshold").
        n: [B, 1, Sq] valid keys of the whole rows.
        compensation: with tensors that have the axis of tokens.
    """
    outs = torch.stack([part.out for part in parts])  # [P, B, Hq, Sq, D]
    maxima = torch.stack([part.maximum for part in parts])
    maximum = maxima.amax(0)
    has_keys = maximum != -torch.inf
    factor = torch.where(has_keys, maxima - maximum.where(has_keys, 0.0), -torch.inf).exp()
    kept_mass = torch.stack([part.kept_mass for part in parts]) * factor
    exact = (torch.stack([part.discarded_mass for part in parts]) * factor).sum(0)
    kept = torch.stack([part.kept for part in parts]).sum(0)

    # where no part kept anything, the largest element of the row stands in: its exponential is 1; among equals
    # argmax takes the first part, which holds the lowest key
    stands_in = (kept == 0) & has_keys
    best = torch.zeros_like(maxima).scatter_(0, maxima.argmax(0, keepdim=True), 1.0)
    kept_mass = torch.where(stands_in, best, kept_mass)
    exact = torch.where(stands_in, (exact - 1).clamp_min(0.0), exact)
    kept = torch.where(stands_in, 1, kept)

    # a part of weight 0 may carry any out
    weighted = torch.where(kept_mass.unsqueeze(-1) == 0, 0.0, outs * kept_mass.unsqueeze(-1))
    return compensation.apply(weighted.sum(0), kept_mass.sum(0), exact, n, kept, maximum, threshold)
