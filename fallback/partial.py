"""Merges the parts of a split row, for split-KV decoding and context parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .compensation import Compensation


class Partial(NamedTuple):
    """The result of a decode step over part of the keys. Statistics are [B, Hq], or [B, Hq, Sq] with several tokens.

    If nothing passed, kept and kept_mass are 0, discarded_mass holds the whole mass, and out holds the V row of the
    largest element.
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
    """Merge parts into the output of whole rows, [B, Hq, Sq, D] float32. Compensation is applied here, once.

    Args:
        parts: with out as [B, Hq, Sq, D] and statistics as [B, Hq, Sq], in the order of their keys.
        threshold: [B, Hq, Sq] in score units (used by sdc="exp_threshold").
        n: [B, 1, Sq] valid keys of the whole rows.
        compensation: its tensors must have the token axis.
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
