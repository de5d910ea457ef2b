"""Sums of small numbers that do not depend on the order of the summands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import TopThetaValueError
from ..thresholds.knots import Floats, Integers

#: A summand is rounded to a multiple of 2**-36. So sums are exact, in whatever order, shards and pieces they are made.
_BITS = 36
#: Larger summands count as this; 2**17 of them fit.
_MOST = 2.0**10


class FixedPointSums:
    """Sum numbers from 0 on in cells.

    Attributes:
        cells: int64, of any shape whose last axis is that of the buckets; in units of 2**-36.

    Example:
        >>> sums = FixedPointSums((2, 3))
        >>> sums.add(np.array([[0.5, 0.25], [1.0, 2.0]]), np.array([0, 0]))
        >>> sums.values()
        array([[0.75, 0.  , 0.  ],
               [3.  , 0.  , 0.  ]])
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.cells: Integers = np.zeros(shape, dtype=np.int64)

    def add(self, values: NDArray[np.floating], buckets: Integers, at: tuple[int, ...] = ()) -> None:
        """Add ``values`` [..., N] to ``cells[at]``, the last axis by ``buckets`` [N].

        Raises:
            TopThetaValueError: a value is NaN or negative, or a sum would overflow.
        """
        if not bool((values >= 0).all()):
            raise TopThetaValueError("values", "numbers of at least 0", "NaN or others", "look for NaN in the weights")
        summands = np.rint(np.minimum(values, _MOST).astype(np.float64) * 2.0**_BITS).astype(np.int64)
        target = self.cells[at]
        for bucket in np.unique(buckets):
            target[..., bucket] += summands[..., buckets == bucket].sum(axis=-1)
        _check_room(target)

    def merge(self, other: FixedPointSums) -> None:
        """Add what ``other`` has summed.

        Raises:
            TopThetaValueError: a sum would overflow.
        """
        self.cells += other.cells
        _check_room(self.cells)

    def values(self) -> Floats:
        """Return the sums as float64."""
        values: Floats = self.cells.astype(np.float64) * 2.0**-_BITS
        return values


def _check_room(cells: Integers) -> None:
    if bool((cells < 0).any()):
        raise TopThetaValueError("row_fraction", "fewer rows", "so many that a sum overflows", "lower it")
