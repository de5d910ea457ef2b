"""Keeps count, mean and variance of a stream, cell by cell, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import TopThetaValueError
from ..thresholds.knots import Floats, Integers


class Moments:
    """Keep count, mean and sum of squared deviations (M2) for an array of cells.

    Batches are combined by the pairwise formula of Chan, Golub and LeVeque (1979), which has no cancellation of
    large sums.

    Attributes:
        count: int64, the shape given.
        mean: float64, the same shape; 0 where count is 0.
        m2: float64, the same shape.

    Example:
        >>> moments = Moments((1, 2))
        >>> moments.update(np.array([[1.0, 3.0, 5.0]]), np.array([0, 0, 1]))
        >>> moments.mean, moments.std()
        (array([[2., 5.]]), array([[1., 0.]]))
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count: Integers = np.zeros(shape, dtype=np.int64)
        self.mean: Floats = np.zeros(shape, dtype=np.float64)
        self.m2: Floats = np.zeros(shape, dtype=np.float64)

    def update(self, values: NDArray[np.floating], cells: Integers) -> None:
        """Add ``values[..., i]`` to the cell ``[..., cells[i]]``.

        Args:
            values: [..., N], finite, the leading dimensions of the shape.
            cells: int64 [N], indices into the last dimension; any order, repeats allowed.

        Raises:
            TopThetaValueError: a value is not finite.
        """
        if not np.isfinite(values).all():
            raise TopThetaValueError("values", "finite numbers", "NaN or infinity")
        if len(cells) == 0:
            return
        order = np.argsort(cells, kind="stable")
        present, starts, counts = np.unique(cells[order], return_index=True, return_counts=True)
        batch = values[..., order].astype(np.float64)
        mean = np.add.reduceat(batch, starts, axis=-1) / counts
        m2 = np.add.reduceat((batch - np.repeat(mean, counts, axis=-1)) ** 2, starts, axis=-1)
        self._combine(present, np.broadcast_to(counts, mean.shape), mean, m2)

    def std(self) -> Floats:
        """Compute the population standard deviation (ddof 0), float64; 0 for a cell without values."""
        return np.sqrt(self.m2 / np.maximum(self.count, 1))

    def _combine(self, cells: Integers, count: Integers, mean: Floats, m2: Floats) -> None:
        have = self.count[..., cells]
        total = np.maximum(have + count, 1)
        delta = mean - self.mean[..., cells]
        self.mean[..., cells] += delta * count / total
        self.m2[..., cells] += m2 + delta**2 * have * count / total
        self.count[..., cells] += count
