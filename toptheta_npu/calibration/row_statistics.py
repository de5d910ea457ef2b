"""Finds the threshold of one attention row, and chooses the row sample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaValueError

# Rows of one pass: a copy of this many elements stays in the second-level cache.
_ELEMENTS_PER_PASS = 1 << 17


def kth_largest(rows: Tensor, ranks: Sequence[int]) -> Tensor:
    """Find the (k+1)-th largest element of every row, so that strictly greater keeps exactly k without ties.

    This is the quantile of Algorithm 1, line 7, counted in ranks so that no rounding can slip by one.

    Args:
        rows: float32 [..., n]; invisible places hold -inf and may lie anywhere.
        ranks: the numbers k of elements to keep, each at least 0.

    Returns:
        float32 [..., len(ranks)]; -inf for rows with fewer than k+1 finite elements. On other devices than a CPU, where
        raising would have to wait, NaN for rows with NaN or +inf.

    Raises:
        TopThetaValueError: on a CPU, an element is NaN or +inf.

    Example:
        >>> kth_largest(torch.tensor([[3.0, 1.0, 2.0, float("-inf")]]), [1, 2, 3])
        tensor([[2., 1., -inf]])
    """
    if not rows.is_cpu:
        return _largest_on_device(rows, ranks)
    source = rows.detach().flatten(0, -2).numpy()
    result = np.full((len(source), len(ranks)), -np.inf, dtype=np.float32)
    step = max(1, _ELEMENTS_PER_PASS // max(1, source.shape[1]))
    for start in range(0, len(source), step):
        result[start : start + step] = _partition(source[start : start + step], ranks)
    return torch.from_numpy(result).view(*rows.shape[:-1], len(ranks))


def _largest_on_device(rows: Tensor, ranks: Sequence[int]) -> Tensor:
    top = rows.topk(min(max(ranks) + 1, rows.shape[-1]), dim=-1).values
    nothing = torch.full_like(top[..., 0], -torch.inf)
    found = torch.stack([top[..., k] if k < top.shape[-1] else nothing for k in ranks], -1)
    # NaN sorts first
    return found.masked_fill(~(top[..., :1] < torch.inf), torch.nan)


def _partition(rows: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
    result = np.full((len(rows), len(ranks)), -np.inf, dtype=np.float32)
    # Rows that are mostly -inf take partition ten times longer, so columns that no row sees go first.
    visible = np.flatnonzero(rows.max(axis=0) != -np.inf)
    if len(visible) == 0:
        return result
    rest = rows[:, visible[0] : visible[-1] + 1].copy()
    # Several ranks in one call to partition are ten times slower than one after the other, each on the
    # part above the one before.
    for column in sorted(range(len(ranks)), key=lambda c: -ranks[c]):
        position = rest.shape[1] - 1 - ranks[column]
        if position >= 0:
            rest.partition(position, axis=1)
            rest = rest[:, position:]
            result[:, column] = rest[:, 0]
    # NaN sorts last, so it and +inf are in what is left, whatever the ranks.
    if not (rest.max() < np.inf):
        raise TopThetaValueError("rows", "finite elements or -inf", "NaN or +inf", "look for an overflow in the model")
    return result


def rows_of_sequence(count: int, fraction: float, seed: int, sequence_index: int) -> Tensor:
    """Choose rows of one sequence. They depend only on the seed and its index, so a resumed run chooses the same.

    Args:
        count: number of rows of the sequence.
        fraction: as in `sample_rows`.
        seed: seed of the calibration.
        sequence_index: index of the sequence in the whole calibration set.

    Returns:
        int64 [chosen], ascending.
    """
    digest = hashlib.sha256(f"{seed}:{sequence_index}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    return sample_rows(count, fraction, generator)


def sample_rows(count: int, fraction: float, generator: torch.Generator) -> Tensor:
    """Choose ``fraction * count`` of ``count`` rows at random, without repeats, ascending.

    A product that is not whole is rounded up or down at random, so that its expectation is exact.

    Args:
        count: number of rows to choose from.
        fraction: above 0, at most 1.
        generator: a CPU generator; the same state gives the same rows.

    Returns:
        int64 [chosen].

    Example:
        >>> len(sample_rows(100, 0.25, torch.Generator().manual_seed(0)))
        25
    """
    if fraction == 1.0:
        return torch.arange(count, device="cpu")
    rounding = float(torch.rand((), generator=generator, dtype=torch.float64, device="cpu"))
    chosen = int(fraction * count + rounding)
    return torch.randperm(count, generator=generator, device="cpu")[:chosen].sort().values


def take_rows(values: Tensor, rows: Tensor, here: Tensor | None = None) -> Tensor:
    """Take ``values[:, rows]`` for ascending ``rows``, without a copy if they are neighbours.

    ``rows`` are on the CPU. ``here`` are the same rows on the device of ``values``; None if that is the CPU, too.
    """
    if not len(rows):
        return values[:, :0]
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return values[:, first : last + 1]
    return values[:, rows if here is None else here]
