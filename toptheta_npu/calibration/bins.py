"""Chooses bins [i*2**e, (i+1)*2**e) aligned to zero: the width that a range needs. Moves counts to wider bins."""

from __future__ import annotations

import numpy as np

from ..thresholds.knots import Floats, Integers

#: Bins of one cell.
BINS = 112
#: Its counters: one for what lies below its bins, and one for each of them.
COUNTERS = BINS + 1

#: Bins are never narrower than 2**MINIMUM_EXPONENT, about 1e-6: constant rows need a width too.
MINIMUM_EXPONENT = -20


def exponents(smallest: np.ndarray, largest: np.ndarray) -> Integers:
    """Find the smallest admissible e per cell. Ranges of 112*2**e or more need a larger one, below 56*2**e fit."""
    empty = ~(smallest <= largest)
    low = np.where(empty, 0.0, smallest).astype(np.float64)
    high = np.where(empty, 0.0, largest).astype(np.float64)
    # frexp: the smallest power of two above a positive number. It says 0 for 0, hence the maximum before it.
    span = np.maximum((high - low) / BINS, 2.0 ** (MINIMUM_EXPONENT - 1))
    exponent = np.frexp(span)[1].astype(np.int64)
    scale = np.exp2(-exponent.astype(np.float64))
    exponent += np.floor(high * scale) - np.floor(low * scale) >= BINS
    return exponent


def first_bins(smallest: np.ndarray, exponent: Integers) -> Floats:
    """Find the i of the bin that holds the smallest element of each cell."""
    low = np.where(np.isfinite(smallest), smallest, 0.0).astype(np.float64)
    return np.floor(low * np.exp2(-exponent.astype(np.float64)))


def rebinned(
    counts: np.ndarray,
    smallest: np.ndarray,
    largest: np.ndarray,
    new_smallest: np.ndarray,
    new_largest: np.ndarray,
) -> Integers:
    """Move ``counts`` [..., 112] of one range into the bins of a range around it, int64."""
    old, new = exponents(smallest, largest), exponents(new_smallest, new_largest)
    first, new_first = first_bins(smallest, old), first_bins(new_smallest, new)
    result = counts.astype(np.int64)
    moving = ((old != new) | (first != new_first)) & counts.any(axis=-1)
    # Bins are aligned to zero, so each old bin lies within one new bin. Only empty bins are clipped.
    ratio = np.exp2((old - new)[moving].astype(np.float64))[:, None]
    moved = np.floor((first[moving][:, None] + np.arange(BINS)) * ratio)
    target = np.clip(moved - new_first[moving][:, None], 0, BINS - 1).astype(np.int64)
    cell = np.arange(len(target))[:, None] * BINS
    total = np.bincount((target + cell).ravel(), weights=counts[moving].ravel(), minlength=target.size)
    result[moving] = total.reshape(target.shape)
    return result
