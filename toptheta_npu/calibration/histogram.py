"""Bins [i*2**e, (i+1)*2**e) aligned to zero: the width that a range of numbers needs, and counts of rows in them."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import TopThetaValueError
from ..thresholds.knots import Floats, Integers

#: Bins of one cell.
BINS = 112

#: Bins are never narrower than 2**MINIMUM_EXPONENT, about 1e-6: constant rows need a width too.
MINIMUM_EXPONENT = -20

# Beyond this a "score" is a mask value (float32's or bfloat16's lowest number) or an overflow.
_LARGEST_SCORE = 2.0**100


def row_ranges(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Smallest visible and largest element of ``rows`` [H, N, n], float32 [H, N]; the number of columns that all see.

    Raises:
        TopThetaValueError: an element is NaN, +inf or beyond 2**100.
    """
    high = rows.max(axis=-1, initial=-np.inf)
    hidden = np.flatnonzero(rows.min(axis=(0, 1)) == -np.inf)
    shown = int(hidden[0]) if len(hidden) else rows.shape[-1]
    # A minimum with a mask takes four times as long. NaN fails its comparison, but has made the maximum NaN.
    rest = rows[..., shown:]
    low_rest = rest.min(axis=-1, where=rest > -np.inf, initial=np.inf)
    low = np.minimum(rows[..., :shown].min(axis=-1, initial=np.inf), low_rest)
    if not (high < _LARGEST_SCORE).all() or not (low > -_LARGEST_SCORE).all():
        raise TopThetaValueError(
            "values",
            "numbers within +-2**100, and -inf where masked",
            "NaN, +inf or a huge number",
            "mask with -inf, not with the lowest number of the dtype",
        )
    return low, high, shown


def exponents(smallest: np.ndarray, largest: np.ndarray) -> Integers:
    """The smallest admissible e per cell. Ranges of 112*2**e or more need a larger one, below 56*2**e fit."""
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
    """The i of the bin that holds the smallest element of each cell."""
    low = np.where(np.isfinite(smallest), smallest, 0.0).astype(np.float64)
    return np.floor(low * np.exp2(-exponent.astype(np.float64)))


def rebinned(
    counts: np.ndarray,
    smallest: np.ndarray,
    largest: np.ndarray,
    new_smallest: np.ndarray,
    new_largest: np.ndarray,
) -> Integers:
    """``counts`` [..., 112] of one range in the bins of a range around it, int64."""
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


def histograms(rows: np.ndarray, cells: Integers, smallest: np.ndarray, largest: np.ndarray, shown: int) -> Integers:
    """Counts [H, P, 112] of ``rows`` [H, N, n], of which row i belongs to cell ``cells[i]``.

    ``smallest`` and ``largest`` [H, P] are the ranges of the cells; all rows see the first ``shown`` columns.
    """
    num_heads, num_cells = smallest.shape
    exponent = exponents(smallest, largest)
    scale = torch.from_numpy(np.exp2(-exponent.astype(np.float32))[:, cells, None])
    first = torch.from_numpy(first_bins(smallest, exponent).astype(np.float32)[:, cells, None])
    # Scaling by a power of two, the floor and the difference of floors are exact in float32; where bins are wide
    # the floor at the finest bins comes first, for otherwise tiny numbers could underflow to zero. Bin 0 of a
    # cell's 113 takes the -inf of invisible places.
    if (exponent > 0).any():
        finest = 2.0**-MINIMUM_EXPONENT
        index = torch.from_numpy(rows).mul(finest).floor_().mul_(scale / finest)
    else:
        index = torch.from_numpy(rows).mul(scale)
    index.floor_().sub_(first)[..., shown:].clamp_(min=-1.0)
    size = num_heads * num_cells * (BINS + 1)
    integer = torch.int16 if size <= 2**15 else torch.int32
    place = (np.arange(num_heads)[:, None, None] * num_cells + cells[:, None]) * (BINS + 1) + 1
    counted = torch.bincount(index.to(integer).add_(torch.from_numpy(place).to(integer)).flatten(), minlength=size)
    result: Integers = counted.numpy().reshape(num_heads, num_cells, BINS + 1)[..., 1:]
    return result
