"""The native form of `calibration.counting`, with the same two functions."""

from __future__ import annotations

import numpy as np
import torch

from ..thresholds.knots import Integers
from .library import loaded

#: Of a cell: one for what lies below its bins, and one for each of them; kCounters of source/counting.h.
COUNTERS = 113


def row_ranges(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find what `calibration.counting.row_ranges` finds."""
    rows = np.ascontiguousarray(rows)
    low, high = (np.empty(len(rows), dtype=np.float32) for _ in range(2))
    loaded(torch.float32).toptheta_row_ranges(rows.ctypes.data, *rows.shape, low.ctypes.data, high.ctypes.data)
    return low, high


def count(
    rows: np.ndarray, cells: Integers, scale: np.ndarray, first: np.ndarray, finest: float, num_cells: int
) -> Integers:
    """Count what `calibration.counting.count` counts."""
    rows, cells = np.ascontiguousarray(rows), np.ascontiguousarray(cells)
    counts = np.zeros((num_cells, COUNTERS), dtype=np.int64)
    loaded(torch.float32).toptheta_count(
        rows.ctypes.data, *rows.shape, cells.ctypes.data, scale.ctypes.data, first.ctypes.data, finest,
        counts.ctypes.data,
    )  # fmt: skip
    return counts[:, 1:]
