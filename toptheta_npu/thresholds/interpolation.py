"""Works out thresholds of many rows at once, between knots of k and of length.

A row lies in a cell of the grid of knots, and there its value is bilinear in the logarithms: with the weights u in
length and v in k, ``base + u * slope + v * (step + u * twist)``. The coefficients of the cells are worked out in
float64 and rounded, the rows in float32. After the softmax it is log theta that is bilinear; ``base`` is then theta
itself and the rest its exponent, so that no digits are lost to the logarithm of a small number.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .fit import ThresholdFit, theta_of
from .grid import ThresholdGrid
from .knots import Floats, Integers, Places

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
    """Tell which cells of the grid N rows lie in, and where in them.

    Attributes:
        corners: int64 [4, P], of every cell the lower and upper k, the lower and upper length.
        cell: int64 [N], where a row lies.
        u: float32 [N, 1], how far the row is on its way between the lengths.
        v: float32 [N, 1], how far between the k; one number where it is the same for all rows.
    """

    corners: Integers
    cell: Tensor
    u: Tensor
    v: Tensor | float

    @classmethod
    def of(cls, by_length: Places, by_k: Places) -> Cells:
        """Find the cells of rows at these places."""
        sides = (by_k.low, by_k.high, by_length.low, by_length.high)
        shape = [1 + int(side.max(initial=0)) for side in sides]
        found, cell = np.unique(np.ravel_multi_index(sides, shape), return_inverse=True)
        corners = np.stack(np.unravel_index(found, shape))
        same = len(cell) > 0 and bool((by_k.weight == by_k.weight[0]).all())
        v = float(by_k.weight[0]) if same else _column(by_k.weight)
        return cls(corners, torch.from_numpy(cell), _column(by_length.weight), v)

    @classmethod
    def between_two(cls, by_length: Places) -> Cells:
        """Find the cells of rows between two k, at the lower one: for the lines of :func:`lines_between`."""
        zeros = np.zeros_like(by_length.low)
        return cls.of(by_length, Places(zeros, zeros + 1, np.zeros_like(by_length.weight)))


def lines_between(lines: Floats, by_k: Places) -> Floats:
    """Take of ``lines`` [K, R, Hq] the lower and the upper k of the first place: float64 [2, R, Hq]."""
    return lines[[by_k.low[0], by_k.high[0]]]


def _column(weight: Floats) -> Tensor:
    return torch.from_numpy(weight.astype(np.float32))[:, None]


def interpolated(lines: Floats, cells: Cells, *, logarithmic: bool = False, dense: float = -np.inf) -> Tensor:
    """Interpolate rows between the knots: float32 [N, Hq].

    Args:
        lines: float64 [K, R, Hq], one layer of :func:`usable_lines`, or [2, R, Hq] of :func:`lines_between`.
        cells: where the N rows lie.
        logarithmic: the lines are logarithms of what is wanted, -inf for dense.
        dense: what a row has in a cell of which a corner is -inf.
    """
    base, slope, step, twist = _coefficients(lines, cells.corners)
    if not isinstance(cells.v, Tensor):
        base, slope = base + cells.v * step, slope + cells.v * twist
    if logarithmic:
        # Half the exponent twice: in float32 the exponential of all of it may be more than the largest number.
        base, slope, step, twist = theta_of("post_softmax", base), slope / 2, step / 2, twist / 2
    base = np.where(base == -np.inf, dense, base)
    coefficients = [torch.from_numpy(each.astype(np.float32)) for each in (base, slope, step, twist)]
    rows = torch.empty(len(cells.cell), base.shape[1], dtype=torch.float32, device="cpu")
    for start in range(0, len(rows), _ROWS_PER_PASS):
        part = slice(start, start + _ROWS_PER_PASS)
        change, from_base = _changes(coefficients, cells, part)
        if logarithmic:
            torch.mul(from_base.mul_(change.exp_()), change, out=rows[part])
        else:
            torch.add(from_base, change, out=rows[part])
    return rows


def _changes(coefficients: list[Tensor], cells: Cells, part: slice) -> tuple[Tensor, Tensor]:
    """Work out what a part of the rows adds to the base of its cells, and that base: float32 [N, Hq]."""
    base, slope, step, twist = (partial(each.index_select, 0, cells.cell[part]) for each in coefficients)
    change = slope()
    if isinstance(cells.v, Tensor):
        change.addcmul_(twist(), cells.v[part])
    change.mul_(cells.u[part])
    if isinstance(cells.v, Tensor):
        change.addcmul_(step(), cells.v[part])
    return change, base()


def _coefficients(lines: Floats, corners: Integers) -> tuple[Floats, Floats, Floats, Floats]:
    """Work out base, slope, step and twist of the cells between ``corners`` [4, P]: float64 [P, Hq].

    Between a finite and an infinite corner the row takes the lowest: it keeps more.
    """
    low_k, high_k, low_n, high_n = corners
    corner, right = lines[low_k, low_n], lines[low_k, high_n]
    above, opposite = lines[high_k, low_n], lines[high_k, high_n]
    finite = np.isfinite(corner) & np.isfinite(right) & np.isfinite(above) & np.isfinite(opposite)
    lowest = np.minimum(np.minimum(corner, right), np.minimum(above, opposite))
    with np.errstate(invalid="ignore"):
        changes = right - corner, above - corner, opposite - above - right + corner
    slope, step, twist = (np.where(finite, change, 0.0) for change in changes)
    return np.where(finite, corner, lowest), slope, step, twist


def fitted(fit: ThresholdFit, layer: int, lengths: Integers, by_k: Places, shortest: Integers) -> Tensor:
    """Follow the fitted function, linear in log k between two k: float32 [N, Hq].

    Args:
        fit: of the table.
        layer: its index.
        lengths: int64 [N], ascending, at least 1.
        by_k: where the rows lie between the knots of k, ascending.
        shortest: int64 [K], the length below which each k has no function and the row takes its value there.
    """
    rows = torch.empty(len(lengths), fit.coefficients.shape[2], dtype=torch.float32, device="cpu")
    changes = np.flatnonzero(np.diff(by_k.low) + np.diff(by_k.high)) + 1
    for start, end in pairwise([0, *changes.tolist(), len(lengths)]):
        low, high = int(by_k.low[start]), int(by_k.high[start])
        run = fit.line(low, layer, np.maximum(lengths[start:end], shortest[low]))
        if low != high:
            above = fit.line(high, layer, np.maximum(lengths[start:end], shortest[high]))
            run.lerp_(above, torch.from_numpy(by_k.weight[start:end].astype(np.float32))[:, None])
        if fit.placement == "post_softmax":
            run.exp_()
        dense = (fit.coefficients[[low, high], layer, :, 0] == -torch.inf).any(dim=0)
        run[:, dense] = -torch.inf
        rows[start:end] = run
    return rows
