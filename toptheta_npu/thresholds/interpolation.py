"""Works out thresholds of many rows at once, between knots of k and of length.

A row lies in a cell of the grid of knots, and there its value is bilinear in the logarithms. Its k is that of all rows,
so with the weight u in length it is ``base + u * slope``. The coefficients of the cells are worked out in float64 and
rounded, the rows in float32. After the softmax it is log theta that is bilinear; ``base`` is then theta itself and the
rest its exponent, so that no digits are lost to the logarithm of a small number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .fit import ThresholdFit, theta_of
from .grid import ThresholdGrid
from .knots import Floats, Integers, Places, locate

# The scratch of a pass stays in the second-level cache.
_ROWS_PER_PASS = 3 * 2**12


def first_usable(table: ThresholdGrid) -> Integers:
    """Find the first length above the calibrated k, by k and layer: its index, int64 [K, L], R where there is none."""
    return np.searchsorted(table.lengths.numpy(), table.calibrated_targets.numpy(), side="right")


def usable_lines(values: Floats, first: Integers) -> Floats:
    """Sort ``values`` [K, L, Hq, R] by layer, without those of dense lengths: float64 [L, K, R, Hq].

    Only lengths above the calibrated k carry a calibrated value. Below them the first such value is used: for a k
    between two knots it stands in for "nearly everything", which is what it means there. Without any, it is -inf.
    """
    lengths = values.shape[-1]
    index = np.maximum(np.arange(lengths), np.minimum(first, lengths - 1)[..., None])
    filled = np.take_along_axis(values, index[:, :, None], axis=-1)
    filled[first == lengths] = -np.inf
    return np.ascontiguousarray(filled.transpose(1, 0, 3, 2))


class Cells(NamedTuple):
    """Tell between which lengths N rows lie, and where there.

    Attributes:
        ends: int64 [2, P], the lower and the upper length of every cell.
        cell: int64 [N], where a row lies.
        u: float32 [N, 1], how far the row is on its way between the lengths.
    """

    ends: Integers
    cell: Tensor
    u: Tensor

    @classmethod
    def of(cls, places: Places) -> Cells:
        """Find the cells of rows at these places."""
        lengths = 1 + int(places.high.max(initial=0))
        found, cell = np.unique(places.low * lengths + places.high, return_inverse=True)
        u = torch.from_numpy(places.weight.astype(np.float32))[:, None]
        return cls(np.stack(np.divmod(found, lengths)), torch.from_numpy(cell), u)


class BetweenKnots(NamedTuple):
    """Tell between which knots of k, by their indices, one k lies, and how far it is on its way from low to high."""

    low: int
    high: int
    v: float

    @classmethod
    def of(cls, table: ThresholdGrid, layer: int, target: int) -> BetweenKnots:
        """Find the place of what a layer keeps."""
        low, high, weight = locate(table.k.numpy(), np.array([target]), table.layer_k[layer])
        return cls(int(low[0]), int(high[0]), float(weight[0]))


def interpolated(
    lines: Floats, cells: Cells, by_k: BetweenKnots, *, logarithmic: bool = False, dense: float = -np.inf
) -> Tensor:
    """Interpolate rows between the knots: float32 [N, Hq].

    Args:
        lines: float64 [K, R, Hq], one layer of :func:`usable_lines`.
        cells: where the N rows lie.
        by_k: where their k lies.
        logarithmic: the lines are logarithms of what is wanted, -inf for dense.
        dense: what a row has in a cell of which a corner is -inf.
    """
    base, slope = _coefficients(lines, cells.ends, by_k)
    if logarithmic:
        # Half the exponent twice: in float32 the exponential of all of it may be more than the largest number.
        base, slope = theta_of("post_softmax", base), slope / 2
    base = np.where(base == -np.inf, dense, base)
    bases, slopes = (torch.from_numpy(each.astype(np.float32)) for each in (base, slope))
    rows = torch.empty(len(cells.cell), base.shape[1], dtype=torch.float32, device="cpu")
    for start in range(0, len(rows), _ROWS_PER_PASS):
        part = slice(start, start + _ROWS_PER_PASS)
        cell = cells.cell[part]
        from_base, change = bases.index_select(0, cell), slopes.index_select(0, cell).mul_(cells.u[part])
        if logarithmic:
            torch.mul(from_base.mul_(change.exp_()), change, out=rows[part])
        else:
            torch.add(from_base, change, out=rows[part])
    return rows


def _coefficients(lines: Floats, ends: Integers, by_k: BetweenKnots) -> tuple[Floats, Floats]:
    """Work out base and slope of the cells between ``ends`` [2, P] at one k: float64 [P, Hq].

    Between a finite and an infinite corner the row takes the lowest: it keeps more.
    """
    (corner, right), (above, opposite) = lines[by_k.low][ends], lines[by_k.high][ends]
    finite = np.isfinite(corner) & np.isfinite(right) & np.isfinite(above) & np.isfinite(opposite)
    lowest = np.minimum(np.minimum(corner, right), np.minimum(above, opposite))
    with np.errstate(invalid="ignore"):
        changes = right - corner, above - corner, opposite - above - right + corner
    slope, step, twist = (np.where(finite, change, 0.0) for change in changes)
    return np.where(finite, corner, lowest) + by_k.v * step, slope + by_k.v * twist


def fitted(fit: ThresholdFit, layer: int, lengths: Integers, by_k: BetweenKnots, shortest: Integers) -> Tensor:
    """Follow the fitted function, linear in log k between two k: float32 [N, Hq].

    Args:
        fit: of the table.
        layer: its index.
        lengths: int64 [N], ascending, at least 1.
        by_k: where the k of the rows lies.
        shortest: int64 [K], the length below which each k has no function and the row takes its value there.
    """
    low, high = by_k.low, by_k.high
    rows = fit.line(low, layer, np.maximum(lengths, shortest[low]))
    if low != high:
        rows.lerp_(fit.line(high, layer, np.maximum(lengths, shortest[high])), by_k.v)
    if fit.placement == "post_softmax":
        rows.exp_()
    rows[:, (fit.coefficients[[low, high], layer, :, 0] == -torch.inf).any(dim=0)] = -torch.inf
    return rows
