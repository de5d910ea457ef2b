"""A fixed-size summary of all elements of the calibration rows, from which the threshold of any k follows.

The mean number of elements above theta over S rows is (elements above theta) / S, so the threshold that
keeps k on average is where the pooled survival count equals S*k. This answers the paper's appendix on
multi-k calibration with one histogram per (head, row-length bucket) instead of merged intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError
from ..thresholds.knots import Floats, Integers

#: Bins of one cell.
BINS = 112

#: Bins are never narrower than 2**MINIMUM_EXPONENT, about 1e-6: constant rows need a width too.
MINIMUM_EXPONENT = -20

# Beyond this a "score" is a mask value (float32's or bfloat16's lowest number) or an overflow.
_LARGEST_SCORE = 2.0**100
_LARGEST_COUNT = 2**32 - 1
# Elements of one pass: the scratch of a pass stays in the second-level cache.
_ELEMENTS_PER_PASS = 1 << 18


class SketchThresholds(NamedTuple):
    """Thresholds of one k with the mean counts kept at the two edges of the bin that holds them.

    Each is float64 [H, R]; ``k_low <= k <= k_high`` is exact, whatever the interpolation did.
    """

    theta: Floats
    k_low: Floats
    k_high: Floats


class SurvivalSketch:
    """Counts of elements in 112 bins per (head, bucket), bins [i*2**e, (i+1)*2**e) aligned to zero.

    Where the range of a cell outgrows its bins, e grows and neighbours merge. The final e is the smallest
    one, not below :data:`MINIMUM_EXPONENT`, for which the cell's smallest and largest element are less
    than 112 bins apart. So the state depends on the elements alone, not on their order or on how they were
    sharded, and merging shards is exact.

    Attributes:
        rows: int64 [R], the rows seen per bucket.
        counts: uint32 [H, R, 112]; bin 0 of a cell is the bin of its smallest element.
        smallest, largest: float32 [H, R], the range of a cell; +inf and -inf where it is empty.

    Example:
        >>> sketch = SurvivalSketch(num_heads=1, num_buckets=1)
        >>> rows = torch.linspace(0, 1, 1001).expand(1, 8, -1)
        >>> sketch.update(rows.contiguous(), torch.zeros(8, dtype=torch.int64))
        >>> thresholds = sketch.theta(100)
        >>> thresholds.theta.round(2), bool(thresholds.k_low <= 100 <= thresholds.k_high)
        (array([[0.9]]), True)
    """

    def __init__(self, num_heads: int, num_buckets: int) -> None:
        cells = (num_heads, num_buckets)
        self.rows: Integers = np.zeros(num_buckets, dtype=np.int64)
        self.counts: np.ndarray = np.zeros((*cells, BINS), dtype=np.uint32)
        self.smallest: np.ndarray = np.full(cells, np.inf, dtype=np.float32)
        self.largest: np.ndarray = np.full(cells, -np.inf, dtype=np.float32)

    def exponents(self) -> Integers:
        """The exponent e of every cell's bin width, int64 [H, R]."""
        return _exponents(self.smallest, self.largest)

    def update(self, values: Tensor, buckets: Tensor) -> None:
        """Adds rows.

        Args:
            values: float32 [H, N, n]: scores, or log-probabilities; -inf in invisible places.
            buckets: int64 [N], the length bucket of every row.

        Raises:
            TopThetaTypeError: ``values`` is not float32.
            TopThetaValueError: shapes do not fit, a value is NaN, +inf or beyond 2**100, or a count no
                longer fits 32 bits.
        """
        self._check(values, buckets)
        if len(buckets) == 0:
            return
        data = values.detach().cpu().numpy()
        # Rows of one bucket side by side: a pass then touches few cells.
        sorted_buckets, order = (array.numpy() for array in buckets.cpu().sort(stable=True))
        present, starts, rows = np.unique(sorted_buckets, return_index=True, return_counts=True)
        low, high = _row_ranges(data)
        cells = np.ix_(np.arange(len(data)), present)
        smallest = np.minimum(self.smallest[cells], np.minimum.reduceat(low[:, order], starts, axis=1))
        largest = np.maximum(self.largest[cells], np.maximum.reduceat(high[:, order], starts, axis=1))
        old = self.counts[cells], self.smallest[cells], self.largest[cells]
        counts = _rebinned(*old, smallest, largest)
        cell_of_row = np.repeat(np.arange(len(present)), rows)
        for chosen in _passes(len(order), data.shape[2]):
            first, last = cell_of_row[chosen][[0, -1]]
            local = cell_of_row[chosen] - first
            for head in range(len(data)):
                span = (head, slice(first, last + 1))
                counts[span] += _histograms(data[head, order[chosen]], local, smallest[span], largest[span])
        self.counts[cells] = _as_uint32(counts)
        self.smallest[cells], self.largest[cells] = smallest, largest
        self.rows[present] += rows

    def merge(self, other: SurvivalSketch) -> None:
        """Adds what ``other`` has seen; the result is the sketch of all rows together, exactly.

        Raises:
            TopThetaValueError: the shapes differ, or a count no longer fits 32 bits.
        """
        if other.counts.shape != self.counts.shape:
            raise TopThetaValueError("other", f"shape {self.counts.shape}", str(other.counts.shape))
        smallest = np.minimum(self.smallest, other.smallest)
        largest = np.maximum(self.largest, other.largest)
        mine = _rebinned(self.counts, self.smallest, self.largest, smallest, largest)
        theirs = _rebinned(other.counts, other.smallest, other.largest, smallest, largest)
        self.counts = _as_uint32(mine + theirs)
        self.smallest, self.largest = smallest, largest
        self.rows += other.rows

    def theta(self, k: int) -> SketchThresholds:
        """The thresholds that keep ``k`` elements per row on average.

        Within its bin the survival count is taken as exponential in theta. Cells without rows, or with no
        more than k elements per row, get -inf (keep everything).

        Raises:
            TopThetaValueError: ``k`` is below 1.
        """
        if k < 1:
            raise TopThetaValueError("k", "at least 1", str(k))
        wanted = np.broadcast_to((self.rows * k).astype(np.float64), self.counts.shape[:2])
        # survival[..., i] elements are not below the lower edge of bin i; none are above the last bin.
        survival = np.zeros((*self.counts.shape[:2], BINS + 1))
        survival[..., :BINS] = np.cumsum(self.counts[..., ::-1].astype(np.float64), axis=-1)[..., ::-1]
        bins = np.maximum((survival > wanted[..., None]).sum(axis=-1) - 1, 0)
        above = np.take_along_axis(survival, bins[..., None], axis=-1)[..., 0]
        below = np.take_along_axis(survival, bins[..., None] + 1, axis=-1)[..., 0]
        dense = above <= wanted
        part = np.where(dense, 0.0, _part_of_bin(above, below, wanted))
        width = np.exp2(self.exponents().astype(np.float64))
        smallest = np.where(np.isfinite(self.smallest), self.smallest, 0).astype(np.float64)
        theta = np.where(dense, -np.inf, (np.floor(smallest / width) + bins + part) * width)
        rows = np.maximum(self.rows, 1)
        return SketchThresholds(theta, np.where(dense, above, below) / rows, above / rows)

    def _check(self, values: Tensor, buckets: Tensor) -> None:
        heads, num_buckets = self.smallest.shape
        if values.dtype != torch.float32:
            raise TopThetaTypeError("values", "float32", str(values.dtype), "call .float() first")
        if values.ndim != 3 or values.shape[:2] != (heads, len(buckets)):
            want = f"shape ({heads}, {len(buckets)}, n)"
            raise TopThetaValueError("values", want, str(tuple(values.shape)))
        if len(buckets) and not 0 <= int(buckets.min()) <= int(buckets.max()) < num_buckets:
            got = f"{int(buckets.min())} to {int(buckets.max())}"
            raise TopThetaValueError("buckets", f"0 to {num_buckets - 1}", got)


def _passes(count: int, width: int) -> Iterator[slice]:
    step = max(1, _ELEMENTS_PER_PASS // max(1, width))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _row_ranges(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest visible and largest element of every row of ``data`` [H, N, n], each float32 [H, N]."""
    low = np.empty(data.shape[:2], dtype=np.float32)
    high = np.empty(data.shape[:2], dtype=np.float32)
    for head, rows in enumerate(data):
        for chosen in _passes(*rows.shape):
            part = rows[chosen]
            high[head, chosen] = part.max(axis=1, initial=-np.inf)
            # NaN fails this comparison, but has made the maximum NaN.
            low[head, chosen] = part.min(axis=1, where=part > -np.inf, initial=np.inf)
    if not (high < _LARGEST_SCORE).all() or not (low > -_LARGEST_SCORE).all():
        raise TopThetaValueError(
            "values",
            "numbers within +-2**100, and -inf where masked",
            "NaN, +inf or a huge number",
            "mask with -inf, not with the lowest number of the dtype",
        )
    return low, high


def _exponents(smallest: np.ndarray, largest: np.ndarray) -> Integers:
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


def _first_bins(smallest: np.ndarray, exponent: Integers) -> Floats:
    low = np.where(np.isfinite(smallest), smallest, 0.0).astype(np.float64)
    return np.floor(low * np.exp2(-exponent.astype(np.float64)))


def _rebinned(
    counts: np.ndarray,
    smallest: np.ndarray,
    largest: np.ndarray,
    new_smallest: np.ndarray,
    new_largest: np.ndarray,
) -> Integers:
    """``counts`` [..., 112] of one range in the bins of a range around it, int64."""
    old, new = _exponents(smallest, largest), _exponents(new_smallest, new_largest)
    # Bins are aligned to zero, so each old bin lies within one new bin. Only empty bins are clipped.
    start = _first_bins(smallest, old)[..., None] + np.arange(BINS)
    moved = np.floor(start * np.exp2((old - new).astype(np.float64))[..., None])
    target = np.clip(moved - _first_bins(new_smallest, new)[..., None], 0, BINS - 1).astype(np.int64)
    cell = np.arange(target[..., 0].size).reshape(target.shape[:-1])[..., None] * BINS
    total = np.bincount((target + cell).ravel(), weights=counts.ravel(), minlength=target.size)
    return total.astype(np.int64).reshape(target.shape)


def _histograms(rows: np.ndarray, cells: Integers, smallest: np.ndarray, largest: np.ndarray) -> Integers:
    """Counts [cells, 112] of ``rows`` [N, n], where row i belongs to cell ``cells[i]``."""
    exponent = _exponents(smallest, largest)
    finest = np.float32(2.0**-MINIMUM_EXPONENT)
    scale = np.exp2((MINIMUM_EXPONENT - exponent).astype(np.float32))[cells, None]
    first = _first_bins(smallest, exponent).astype(np.float32)[cells, None]
    # Scaling by a power of two, the floor and the difference of floors are exact in float32; the floor at
    # the finest bins first, for otherwise tiny numbers could underflow to zero. Bin 0 of a cell's 113 takes
    # the -inf of invisible places.
    index = torch.from_numpy(rows * finest).floor_().mul_(torch.from_numpy(scale))
    index.floor_().sub_(torch.from_numpy(first)).clamp_(min=-1.0)
    index.add_(torch.from_numpy((cells * (BINS + 1) + 1).astype(np.float32))[:, None])
    size = len(smallest) * (BINS + 1)
    counted = torch.bincount(index.to(torch.int32).flatten(), minlength=size).numpy()
    return counted.reshape(-1, BINS + 1)[:, 1:]


def _part_of_bin(above: Floats, below: Floats, wanted: Floats) -> Floats:
    """How far into its bin the survival count has fallen from ``above`` to ``wanted``, 0 to 1."""
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
