"""Passes twice over all elements of calibration rows."""

from __future__ import annotations

import numpy as np
import torch

from ..thresholds.knots import Integers
from .bins import COUNTERS


def row_ranges(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the smallest element above -inf (+inf if there is none) and the largest of ``rows`` [N, n]: float32 [N]
    each.

    Where an element is NaN, so is the largest.
    """
    high = rows.max(axis=-1, initial=-np.inf)
    # A minimum with a mask takes four times as long, so the columns that all rows see go without.
    # fmin: a NaN, which is the caller's to refuse, does not hide the -inf of another row.
    hidden = np.flatnonzero(np.fmin.reduce(rows, axis=0, initial=np.inf) == -np.inf)
    shown = hidden[0] if len(hidden) else rows.shape[-1]
    rest = rows[:, shown:]
    low = rest.min(axis=-1, where=rest > -np.inf, initial=np.inf)
    return np.minimum(rows[:, :shown].min(axis=-1, initial=np.inf), low), high


def count(
    rows: np.ndarray, cells: Integers, scale: np.ndarray, first: np.ndarray, finest: float, num_cells: int
) -> Integers:
    """Count the elements of ``rows`` [N, n] in each of a cell's 112 bins: int64 [num_cells, 112].

    Args:
        rows: float32, -inf in hidden places, otherwise within the range of their cell.
        cells: int64 [N], the cell of each row.
        scale: float32 [N], one over the width of the row's bins, a power of two.
        first: float32 [N], the number of the first of them, counted from zero.
        finest: one over the least width.
    """
    # Scaling by a power of two, the floor and the difference of floors are exact in float32; where bins are wide
    # the floor at the finest bins comes first, for otherwise tiny numbers could underflow to zero. Bin 0 of a
    # cell's 113 takes the -inf of hidden places.
    scales = torch.from_numpy(scale)[:, None]
    if (scale < 1).any():
        index = torch.from_numpy(rows).mul(finest).floor_().mul_(scales / finest)
    else:
        index = torch.from_numpy(rows).mul(scales)
    index.floor_().sub_(torch.from_numpy(first)[:, None]).clamp_(min=-1.0)
    size = num_cells * COUNTERS
    integer = torch.int16 if size <= 2**15 else torch.int32
    place = torch.from_numpy(cells * COUNTERS + 1)[:, None].to(integer)
    counted = torch.bincount(index.to(integer).add_(place).flatten(), minlength=size)
    result: Integers = counted.numpy().reshape(num_cells, COUNTERS)[:, 1:]
    return result
