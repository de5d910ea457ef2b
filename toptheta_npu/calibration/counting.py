"""Makes two passes over all elements of calibration rows, block by block, with tensor operations.

Only the copies at the end of a pass wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..thresholds.knots import Integers
from .bins import BINS, COUNTERS, MINIMUM_EXPONENT

#: Block by block, the places of its rows and their scores, float32 [Hq, n, S], -inf where hidden.
Blocks = Iterable[tuple[slice, Tensor]]
#: For each row, [Hq, N] each: the reciprocal of its bin width, the number of its first bin, and its cell.
Bins = tuple[np.ndarray, np.ndarray, Integers]
#: Computes the logarithms of the softmax's denominators, [Hq, n, 1], of scores [Hq, n, S].
Denominators = Callable[[Tensor], Tensor]


def row_ranges(blocks: Blocks, denominators: Denominators | None = None) -> tuple[Tensor, list[Tensor | None]]:
    """Find the smallest element above -inf (+inf if there is none) and the largest of every row.

    If an element is NaN, both are NaN.

    Returns:
        float32 [2, Hq, rows], of scores, or of log-probabilities if ``denominators`` is given; and the result of
        ``denominators`` for each block.
    """
    ends, logarithms = [], []
    for _, scores in blocks:
        # one pass over the elements; a comparison and a choice would take two
        low = scores.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=torch.inf).amin(-1, keepdim=True)
        both = torch.stack([low, scores.amax(-1, keepdim=True)])
        logarithm = None if denominators is None else denominators(scores)
        # rounding keeps the order, so this is the range of the differences to the last bit
        ends.append((both if logarithm is None else both - logarithm).squeeze(-1))
        logarithms.append(logarithm)
    return torch.cat(ends, -1), logarithms


def count(
    blocks: Blocks, logarithms: Sequence[Tensor | None], bins: Bins,
    num_cells: int, device: torch.device,
) -> Integers:  # fmt: skip
    """Count the elements of each cell by bins: int64 [num_cells, 112].

    Args:
        blocks: rows whose elements are within the range of their cell, on ``device``.
        logarithms: logarithms to subtract from each block.
        bins: bins of all rows.
    """
    # Scaling by a power of two, the floor and the difference of floors are exact in float32; where bins are wide
    # the floor at the finest bins comes first, for otherwise tiny numbers could underflow to zero. Bin 0 of a
    # cell's 113 takes the -inf of hidden places.
    scale, first, cell = bins
    finest, wide = 2.0**-MINIMUM_EXPONENT, bool((scale < 1).any())
    by_row = torch.from_numpy(np.stack([scale, first, cell * COUNTERS + 1.0]).astype(np.float32)).to(device)
    counts = torch.zeros(num_cells * COUNTERS, dtype=torch.int64, device=device)
    for (rows, scores), logarithm in zip(blocks, logarithms, strict=True):
        values = scores if logarithm is None else scores - logarithm
        scales, lowest, places = by_row[:, :, rows, None]
        index = (values * finest).floor_().mul_(scales / finest) if wide else values * scales
        # clamped above, too: a pass that rounds differently from the first must not count in another cell
        counts += _tally(index.floor_().sub_(lowest).clamp_(-1.0, BINS - 1.0).add_(places).flatten(), len(counts))
    result: Integers = counts.cpu().numpy().reshape(num_cells, COUNTERS)[:, 1:]
    return result


def _tally(places: Tensor, size: int) -> Tensor:
    """Count how often each of 0 to ``size`` - 1 is in ``places``, whole numbers in float32."""
    if places.is_cpu:
        # takes two thirds of the time of the other way, but would make the host wait for a device
        return torch.bincount(places.to(torch.int32), minlength=size)
    one = torch.ones((), dtype=torch.int32, device=places.device)
    return one.new_zeros(size).scatter_add_(0, places.to(torch.int64), one.expand(len(places)))
