"""Places knots of the row length and interpolates between them, for calibration and for the table."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: The most row lengths that a table holds.
MAX_LENGTH_KNOTS = 128

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def length_knots(longest: int, shortest: int = 1, most: int = MAX_LENGTH_KNOTS) -> list[int]:
    """Choose ascending row lengths from ``shortest`` to ``longest``: every integer at first, then geometric.

    Args:
        longest: the last knot.
        shortest: the first knot, at least 1.
        most: the largest number of knots, at least 2.

    Example:
        >>> length_knots(32, most=10)
        [1, 2, 3, 4, 6, 8, 11, 16, 23, 32]
    """
    if longest - shortest < most:
        return list(range(shortest, longest + 1))
    knots: list[int] = []
    for points in range(most, most * most):
        candidate = np.unique(np.rint(np.geomspace(shortest, longest, points)).astype(np.int64))
        if len(candidate) > most:
            break
        knots = candidate.tolist()
    return knots


def bucket_of(lengths: Tensor, knots: Sequence[int]) -> Tensor:
    """Find the knot nearest to each length in the logarithm; the shorter of two equally near.

    Args:
        lengths: int32 or int64, any shape.
        knots: ascending row lengths.

    Returns:
        int64, the shape of ``lengths``.

    Example:
        >>> bucket_of(torch.tensor([1, 5, 6, 99]), [3, 9, 20])
        tensor([0, 0, 1, 2])
    """
    boundaries = torch.tensor(_boundaries(tuple(knots)), dtype=torch.int64, device=lengths.device)
    return torch.searchsorted(boundaries, lengths.to(torch.int64).contiguous())


@functools.lru_cache
def _boundaries(knots: tuple[int, ...]) -> list[int]:
    # A length is nearer to the lower knot while length^2 <= lower * upper: exact in integers.
    return [math.isqrt(lower * upper) for lower, upper in itertools.pairwise(knots)]


class Places(NamedTuple):
    """The places of N rows between the knots: a fraction ``weight`` of the way from ``low`` to ``high``, in log length.

    A row on a knot, or beyond the last one, has ``low == high`` and weight 0.
    """

    low: Integers
    high: Integers
    weight: Floats


def locate(knots: Integers, positions: Integers, least: int = 0) -> Places:
    """Find the places of ``positions`` [N] among ascending ``knots``; all of them count as at least ``least``."""
    inside = np.clip(positions, knots[0], knots[-1])
    high = np.searchsorted(knots, inside)
    low = np.where(knots[high] == inside, high, high - 1)
    below, here, above = (np.log(np.maximum(each, least)) for each in (knots[low], inside, knots[high]))
    span = above - below
    weight = np.where(span > 0, (here - below) / np.where(span > 0, span, 1.0), 0.0)
    return Places(low, np.where(weight > 0, high, low), weight)


def lerp(low: Floats, high: Floats, weight: Floats | float) -> Floats:
    """Interpolate from ``low`` at weight 0 to ``high`` at 1. If one end is infinite, take the lower: it keeps more."""
    with np.errstate(invalid="ignore"):
        mixed = high * weight
        mixed += low * (1.0 - weight)
    if np.isfinite(low).all() and np.isfinite(high).all():
        return mixed
    mixed = np.where(np.isfinite(low) & np.isfinite(high), mixed, np.minimum(low, high))
    return np.where(np.equal(weight, 0.0), low, np.where(np.equal(weight, 1.0), high, mixed))


def interpolate(values: Floats, knots: Integers, lengths: Integers) -> Floats:
    """Interpolate linearly in log length; outside the knots, use the value of the nearest knot.

    Args:
        values: float64 [..., R], one value per knot.
        knots: int64 [R], ascending.
        lengths: int64 [N], at least 1.

    Returns:
        float64 [..., N].
    """
    places = locate(knots, lengths)
    return lerp(values[..., places.low], values[..., places.high], places.weight)


def fill_gaps(values: Floats, known: NDArray[np.bool_], wanted: NDArray[np.bool_], knots: Integers) -> Floats:
    """Fill the wanted but unknown entries of ``values`` [..., R] from the known ones of their row.

    Rows without a known entry do not change.
    """
    filled = values.copy()
    flat = filled.reshape(-1, len(knots))
    gaps = (wanted & ~known).reshape(flat.shape)
    known_rows = known.reshape(flat.shape)
    for row in np.flatnonzero(gaps.any(axis=1) & known_rows.any(axis=1)):
        have, missing = known_rows[row], gaps[row]
        flat[row, missing] = interpolate(flat[row, have], knots[have], knots[missing])
    return flat.reshape(values.shape)
