"""From a table with knots to one threshold per row length, ready for a decode step."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .checks import MAX_LENGTH
from .fit import line_of
from .interpolation import Cells, first_usable, fitted, interpolated, usable_lines
from .knots import Integers, Places, locate
from .targets import Target

if TYPE_CHECKING:
    from .table import Placement, ThresholdTable

# One threshold per row length, layer and head; 32 x 32 heads and 128 Ki tokens take 0.5 GiB.
_MOST_BYTES = 32 * 2**30

Extrapolation = Literal["nearest", "fitted"]
LookupForm = Literal["tabulated", "fitted"]


class ThresholdExtrapolationWarning(UserWarning):
    """Thresholds were asked for at row lengths beyond the calibrated ones."""


class MeanDiscardedMassWarning(UserWarning):
    """``sdc="offline"`` is to use the mean discarded mass, which a few rows make far too large for most."""


@dataclass(frozen=True, eq=False)
class ThresholdsAtK:
    """Thresholds of one target on one device, a row per length.

    A decode step is one indexing operation without host synchronisation: ``theta[layer][n]`` with n an
    int64 device tensor [B] gives [B, Hq]; :meth:`rows` clamps first.

    Attributes:
        k: elements to keep per row; None with ``target_kept``.
        target_kept: elements to keep as a share of the row; None with ``k``.
        placement: ``"pre_softmax"`` (theta in units of the scaled score) or ``"post_softmax"``.
        longest: N, the last length with a row of its own.
        layer_targets: the effective k of every layer; with ``target_kept`` that of its shortest rows.
        dense_up_to: the length of the longest dense row of every layer: its effective k, or ``dense_below`` less one.
        theta: per layer float32 [N+1, Hq]; -inf in the rows 0 to ``dense_up_to``.
        discarded_mass: per layer float32 [N+1, Hq] relative to exp(row max), 0 where theta is -inf;
            None if the table has none.
        aims: per layer int32 [N+1], the elements that a row aims at unless it is dense.
    """

    k: int | None
    target_kept: float | None
    placement: Placement
    longest: int
    layer_targets: tuple[int, ...]
    dense_up_to: tuple[int, ...]
    theta: tuple[Tensor, ...]
    discarded_mass: tuple[Tensor, ...] | None
    aims: tuple[Tensor, ...]

    def rows(self, layer: int, lengths: Tensor) -> Tensor:
        """Thresholds for rows of any length; those above N use row N. Works under torch.compile.

        Args:
            layer: index of the layer.
            lengths: int32 or int64 [...], on the device of the thresholds.

        Returns:
            float32 [..., Hq].

        Raises:
            TopThetaTypeError: ``lengths`` are not integers.
            TopThetaValueError: there is no such layer.
        """
        return self._rows(self.theta, layer, lengths)

    def discarded_mass_rows(self, layer: int, lengths: Tensor) -> Tensor:
        """The offline estimate of the discarded mass, as :meth:`rows` gives the thresholds.

        Raises:
            TopThetaTypeError: ``lengths`` are not integers.
            TopThetaValueError: there is no such layer, or the table has no discarded mass.
        """
        if self.discarded_mass is None:
            raise TopThetaValueError(
                "discarded_mass", "a table calibrated with it", "None", "run the second calibration pass"
            )
        return self._rows(self.discarded_mass, layer, lengths)

    def aim_rows(self, layer: int, lengths: Tensor) -> Tensor:
        """The elements that rows of any length aim at, int32 [...], as :meth:`rows` gives the thresholds."""
        return self._rows(self.aims, layer, lengths)

    def _rows(self, source: tuple[Tensor, ...], layer: int, lengths: Tensor) -> Tensor:
        if not 0 <= layer < len(source):
            raise TopThetaValueError("layer", f"0 to {len(source) - 1}", str(layer))
        if not isinstance(lengths, Tensor):
            raise TopThetaTypeError("lengths", "an int32 or int64 tensor", shown(lengths))
        if lengths.dtype not in (torch.int32, torch.int64):
            raise TopThetaTypeError("lengths", "int32 or int64", str(lengths.dtype))
        return source[layer][lengths.to(torch.int64).clamp(0, self.longest)]


class Lookup:
    """What `ThresholdTable.at` works out: all that depends on the table once, the rest for each target.

    Args:
        table: the table.
        max_length, extrapolation, form: as ``max_length``, ``extrapolation`` and ``lookup`` of ``ThresholdTable.at``.
        discarded_mass: whether the table's discarded mass is wanted.
    """

    def __init__(
        self,
        table: ThresholdTable,
        max_length: int | None = None,
        extrapolation: Extrapolation = "nearest",
        form: LookupForm = "tabulated",
        *,
        discarded_mass: bool = True,
    ) -> None:
        for name, value, choices in (("extrapolation", extrapolation, Extrapolation), ("lookup", form, LookupForm)):
            if value not in get_args(choices):
                raise TopThetaValueError(name, " or ".join(get_args(choices)), shown(value))
        if max_length is not None and (type(max_length) is not int or not 1 <= max_length <= MAX_LENGTH):
            raise TopThetaValueError("max_length", f"an int from 1 to {MAX_LENGTH}, or None", shown(max_length))
        self._table = table
        self._calibrated = int(table.lengths[-1])
        self._extrapolation = extrapolation
        self._form = form
        self.longest = max_length or self._calibrated
        _check_size(table, self.longest)
        first = first_usable(table)
        self._shortest = table.lengths.numpy()[np.minimum(first, len(table.lengths) - 1)]
        self._lines = usable_lines(line_of(table.placement, table.theta), first)
        self._mass = None
        if discarded_mass and table.discarded_mass is not None:
            mass = usable_lines(table.discarded_mass.numpy().astype(np.float64), first)
            self._mass = np.where(self._lines == -np.inf, -np.inf, mass)
        beyond = extrapolation == "fitted" and self.longest > self._calibrated
        self._fit = table.fit() if form == "fitted" or beyond else None

    def at(self, target: Target, device: torch.device | str = "cpu") -> ThresholdsAtK:
        """Thresholds of ``target`` on ``device``, in tensors of their own."""
        table = self._table
        target.check(table, self.longest)
        destination = _checked_device(device)
        lengths = np.arange(self.longest + 1)
        targets = tuple(max(target.least(table), layer_k) for layer_k in table.layer_k)
        dense_up_to, theta, mass, aims = [], [], [], []
        # so that they can be written to outside of an inference mode that holds now
        with torch.inference_mode(False):
            rows = _Rows(self, target, lengths)
            for layer, layer_k in enumerate(table.layer_k):
                dense_up_to.append(int(np.flatnonzero(rows.plan(layer_k).dense)[-1]))
                aims.append(torch.from_numpy(rows.plan(layer_k).aims.astype(np.int32)).to(destination))
                theta_rows = rows.theta(layer)
                theta.append(theta_rows.to(destination))
                if self._mass is not None:
                    mass.append(rows.discarded_mass(layer, theta_rows).to(destination))
        return ThresholdsAtK(
            target.k, None if target.target_kept is None else float(target.target_kept), table.placement, self.longest,
            targets, tuple(dense_up_to), tuple(theta), tuple(mass) or None, tuple(aims),
        )  # fmt: skip

    def theta_rows(self, k: int, layer: int, lengths: Integers) -> NDArray[np.float32]:
        """Thresholds of one k and layer at ``lengths`` [N]: float32 [Hq, N], -inf up to the layer's effective k."""
        rows: NDArray[np.float32] = _Rows(self, Target(k), lengths).theta(layer).numpy().T
        return rows

    def warn_beyond(self, stacklevel: int) -> None:
        """Warns if there are thresholds beyond the calibrated lengths."""
        if self.longest <= self._calibrated:
            return
        table = self._table
        used = f"the thresholds of length {self._calibrated}"
        if self._extrapolation == "fitted":
            used = "the fitted function"
        dense = [layer for layer in range(table.num_layers) if not bool(table.counts[layer].any())]
        note = f"; layers {dense} have no thresholds and stay dense" if dense else ""
        warnings.warn(
            f"thresholds were calibrated for row lengths {int(table.lengths[0])} to {self._calibrated}, and "
            f"max_length={self.longest} was asked for; longer rows use {used} "
            f"(extrapolation={self._extrapolation!r}){note}",
            ThresholdExtrapolationWarning,
            stacklevel=stacklevel + 1,
        )


@dataclass(frozen=True)
class _Plan:
    """What rows of all lengths have in common in the layers of one minimum."""

    aims: Integers
    dense: NDArray[np.bool_]
    by_k: Places
    cells: Cells


class _Rows:
    """Rows of ``lengths`` [N] in every layer, under one target; with a fitted function those of 0 to the longest."""

    def __init__(self, lookup: Lookup, target: Target, lengths: Integers) -> None:
        self._lookup = lookup
        self._table = lookup._table
        self._target = target
        self._lengths = lengths
        self._plans: dict[int, _Plan] = {}

    def plan(self, layer_k: int) -> _Plan:
        if layer_k not in self._plans:
            wanted = self._target.of(self._lengths, self._table)
            aims = np.maximum(wanted, layer_k)
            dense = (self._lengths <= aims) | (self._lengths < self._target.dense_below)
            by_k = locate(self._table.k.numpy(), wanted, layer_k)
            cells = Cells.of(locate(self._table.lengths.numpy(), self._lengths), by_k)
            self._plans[layer_k] = _Plan(aims, dense, by_k, cells)
        return self._plans[layer_k]

    def theta(self, layer: int) -> Tensor:
        """float32 [N, Hq]."""
        lookup, plan = self._lookup, self.plan(self._table.layer_k[layer])
        # the rows from here on are those of the fitted function, if there is one
        start = 0
        if lookup._form == "tabulated":
            rows = interpolated(lookup._lines[layer], plan.cells, logarithmic=self._table.placement == "post_softmax")
            start = lookup._calibrated + 1
        else:
            rows = torch.empty(len(self._lengths), self._table.num_heads)
        if lookup._fit is not None:
            lengths = np.maximum(self._lengths[start:], 1)
            if lookup._extrapolation == "nearest":
                lengths = np.minimum(lengths, lookup._calibrated)
            values = fitted(lookup._fit, layer, lengths, plan.by_k.part(slice(start, None)), lookup._shortest[:, layer])
            rows[start:] = values
        rows[torch.from_numpy(np.flatnonzero(plan.dense))] = -torch.inf
        return rows

    def discarded_mass(self, layer: int, theta: Tensor) -> Tensor:
        """float32 [N, Hq], 0 where ``theta``, the thresholds of the same rows, is -inf."""
        assert self._lookup._mass is not None
        plan = self.plan(self._table.layer_k[layer])
        rows = interpolated(self._lookup._mass[layer], plan.cells, dense=0.0)
        if self._lookup._fit is not None:
            return torch.where(theta > -torch.inf, rows, 0.0)
        rows[torch.from_numpy(np.flatnonzero(plan.dense))] = 0.0
        return rows


def _checked_device(device: torch.device | str) -> torch.device:
    if not isinstance(device, (str, torch.device)):
        raise TopThetaTypeError("device", "a torch.device or its name", type(device).__name__)
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    # a missing CUDA raises AssertionError, a missing plug-in ModuleNotFoundError, others NotImplementedError
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).split("\n")[0]
        remedy = "name one that this machine has, such as 'cpu'"
        raise TopThetaValueError("device", "a device of this machine", f"{device} ({reason})", remedy) from error
    return found


def _check_size(table: ThresholdTable, longest: int) -> None:
    numbers = (longest + 1) * table.num_layers * table.num_heads * (1 if table.discarded_mass is None else 2)
    if 4 * numbers > _MOST_BYTES:
        got = f"{4 * numbers / 2**30:.0f} GiB for rows of up to {longest} elements"
        raise TopThetaValueError("max_length", f"thresholds of at most {_MOST_BYTES // 2**30} GiB", got, "lower it")
