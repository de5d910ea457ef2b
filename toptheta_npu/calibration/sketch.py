"""Summarises all elements of the calibration rows in a fixed size, from which the threshold of any k follows.

The mean number of elements above theta over S rows is (elements above theta) / S, so the threshold that
keeps k on average is where the pooled survival count equals S*k. This answers the paper's appendix on
multi-k calibration with one histogram per (head, row-length bucket) instead of merged intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ..errors import TopThetaValueError
from ..thresholds.knots import Floats, Integers
from . import counting
from .bins import BINS, exponents, first_bins, rebinned
from .blocks import ScoresAtHand
from .counting import Blocks, Denominators

# Beyond this a "score" is a mask value (float32's or bfloat16's lowest number) or an overflow.
_LARGEST_SCORE = 2.0**100
_LARGEST_COUNT = 2**32 - 1


class SurvivalSketch:
    """Count elements in 112 bins per (head, bucket), bins [i*2**e, (i+1)*2**e) aligned to zero.

    Where the range of a cell outgrows its bins, e grows and neighbours merge. The final e is the smallest
    one, not below `bins.MINIMUM_EXPONENT`, for which the cell's smallest and largest element are less
    than 112 bins apart. So the state depends on the elements alone, not on their order, and sketches of parts of
    them merge into that of all.

    Attributes:
        rows: int64 [R], the rows seen per bucket.
        counts: uint32 [H, R, 112]; bin 0 of a cell is the bin of its smallest element.
        smallest, largest: float32 [H, R], the range of a cell; +inf and -inf where it is empty.

    Example:
        >>> import torch
        >>> sketch = SurvivalSketch(num_heads=1, num_buckets=1)
        >>> rows = torch.linspace(0, 1, 1001).expand(1, 8, -1)
        >>> sketch.update(rows.contiguous(), torch.zeros(8, dtype=torch.int64))
        >>> sketch.theta(100).round(2)
        array([[0.9]])
    """

    def __init__(self, num_heads: int, num_buckets: int) -> None:
        cells = (num_heads, num_buckets)
        self.rows: Integers = np.zeros(num_buckets, dtype=np.int64)
        self.counts: np.ndarray = np.zeros((*cells, BINS), dtype=np.uint32)
        self.smallest: np.ndarray = np.full(cells, np.inf, dtype=np.float32)
        self.largest: np.ndarray = np.full(cells, -np.inf, dtype=np.float32)

    def exponents(self) -> Integers:
        """The exponent e of every cell's bin width, int64 [H, R]."""
        return exponents(self.smallest, self.largest)

    def update(self, values: Tensor, buckets: Tensor) -> None:
        """Add rows.

        Args:
            values: float32 [H, N, n]: scores, or log-probabilities; -inf in invisible places.
            buckets: int64 [N], the length bucket of every row.

        Raises:
            TopThetaValueError: a value is NaN, +inf or beyond 2**100, or a count no longer fits 32 bits.
        """
        if len(buckets):
            rows = ScoresAtHand(values.detach().cpu(), buckets)
            self.merge(*SurvivalSketch.of(rows, buckets.cpu().numpy()))

    @classmethod
    def of(
        cls, blocks: Blocks, buckets: Integers, denominators: Denominators | None = None
    ) -> tuple[SurvivalSketch, Integers]:
        """Sketch some rows alone, over those buckets that occur, and give their numbers for :meth:`merge`.

        It changes nothing, so threads may look at rows at once.

        Args:
            blocks: of the rows, on any device; they are gone over twice.
            buckets: int64 [N], the length bucket of every row.
            denominators: of the softmax, for log-probabilities; None: for scores.

        Raises:
            TopThetaValueError: as :meth:`update`.
        """
        present, local, rows = np.unique(buckets, return_inverse=True, return_counts=True)
        ends, logarithms = counting.row_ranges(blocks, denominators)
        low, high = ends.cpu().numpy()
        _check_ends(low, high)
        made = cls(len(low), len(present))
        made.rows += rows
        made.smallest, made.largest = _ends_of_cells(low, high, local)
        bins = _bins_of_rows(made.smallest, made.largest, local)
        counts = counting.count(blocks, logarithms, bins, made.smallest.size, ends.device)
        made.counts = _as_uint32(counts.reshape(made.counts.shape))
        return made, present

    def merge(self, other: SurvivalSketch, buckets: Integers | None = None) -> None:
        """Add what ``other`` has seen; the result is the sketch of all rows together, exactly.

        Args:
            other: a sketch of as many heads.
            buckets: int64, the buckets here that those of ``other`` are, none twice; None: the same.

        Raises:
            TopThetaValueError: a count no longer fits 32 bits.
        """
        heads, num_buckets = self.smallest.shape
        buckets = np.arange(num_buckets) if buckets is None else buckets
        cells = np.ix_(np.arange(heads), buckets)
        smallest = np.minimum(self.smallest[cells], other.smallest)
        largest = np.maximum(self.largest[cells], other.largest)
        mine = rebinned(self.counts[cells], self.smallest[cells], self.largest[cells], smallest, largest)
        theirs = rebinned(other.counts, other.smallest, other.largest, smallest, largest)
        self.counts[cells] = _as_uint32(mine + theirs)
        self.smallest[cells], self.largest[cells] = smallest, largest
        self.rows[buckets] += other.rows

    def theta(self, k: int) -> Floats:
        """Find the thresholds that keep ``k`` elements per row on average, float64 [H, R].

        Within its bin the survival count is taken as exponential in theta. Cells without rows, or with no
        more than k elements per row, get -inf (keep everything).
        """
        return self.thetas([k])[0]

    def thetas(self, ks: Sequence[int]) -> list[Floats]:
        """Find the :meth:`theta` of several k."""
        survival = self._survival()
        return [self._theta(survival, k * self.rows.astype(np.float64)) for k in ks]

    def _survival(self) -> Floats:
        """Count the elements not below the lower edge of each bin, [H, R, 113]; none are above the last one."""
        survival = np.zeros((*self.counts.shape[:2], BINS + 1))
        np.cumsum(self.counts[..., ::-1], axis=-1, dtype=np.float64, out=survival[..., BINS - 1 :: -1])
        return survival

    def _theta(self, survival: Floats, above_theta: Floats) -> Floats:
        """Find the thresholds that ``above_theta`` [R] elements exceed, of all rows of a bucket together."""
        wanted = np.broadcast_to(above_theta, self.counts.shape[:2])
        bins = np.maximum(np.count_nonzero(survival > wanted[..., None], axis=-1) - 1, 0)
        above = np.take_along_axis(survival, bins[..., None], axis=-1)[..., 0]
        below = np.take_along_axis(survival, bins[..., None] + 1, axis=-1)[..., 0]
        dense = above <= wanted
        part = np.where(dense, 0.0, _part_of_bin(above, below, wanted))
        width = np.exp2(self.exponents().astype(np.float64))
        smallest = np.where(np.isfinite(self.smallest), self.smallest, 0).astype(np.float64)
        theta: Floats = np.where(dense, -np.inf, (np.floor(smallest / width) + bins + part) * width)
        return theta


def _check_ends(low: np.ndarray, high: np.ndarray) -> None:
    """Raise TopThetaValueError unless the smallest visible and the largest elements of rows are scores."""
    if not (high < _LARGEST_SCORE).all() or not (low > -_LARGEST_SCORE).all():
        raise TopThetaValueError(
            "values",
            "numbers within +-2**100, and -inf where masked",
            "NaN, +inf or a huge number",
            "mask with -inf, not with the lowest number of the dtype",
        )


def _ends_of_cells(low: np.ndarray, high: np.ndarray, cells: Integers) -> tuple[np.ndarray, np.ndarray]:
    """Find the smallest and the largest of ``low`` and ``high`` [H, N] in each cell, float32 [H, P]."""
    order, starts = np.argsort(cells, kind="stable"), np.flatnonzero(np.diff(np.sort(cells), prepend=-1))
    low, high = low[:, order], high[:, order]
    # 0 is added since -0 is as small as 0, and the state is to depend on the elements alone
    return np.minimum.reduceat(low, starts, axis=1) + 0.0, np.maximum.reduceat(high, starts, axis=1) + 0.0


def _bins_of_rows(smallest: np.ndarray, largest: np.ndarray, cells: Integers) -> counting.Bins:
    """Give the bins of rows [H, N], as `counting.count` takes them: one over their width, the first, and the cell.

    Args:
        smallest, largest: float32 [H, P], the range of every cell.
        cells: int64 [N], the cell of each row in every head.
    """
    exponent = exponents(smallest, largest)
    scale = np.exp2(-exponent.astype(np.float32))[:, cells]
    first = first_bins(smallest, exponent).astype(np.float32)[:, cells]
    return scale, first, np.arange(len(smallest))[:, None] * smallest.shape[1] + cells


def _part_of_bin(above: Floats, below: Floats, wanted: Floats) -> Floats:
    """Tell how far into its bin the survival count has fallen from ``above`` to ``wanted``, 0 to 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponential = np.log(above / wanted) / np.log(above / below)
        linear = (above - wanted) / (above - below)
    return np.where(below > 0, exponential, linear)


def _as_uint32(counts: Integers) -> np.ndarray:
    if counts.size and counts.max() > _LARGEST_COUNT:
        raise TopThetaValueError(
            "values", "at most 2**32 - 1 elements per bin", str(counts.max()), "lower row_fraction"
        )
    return counts.astype(np.uint32)
