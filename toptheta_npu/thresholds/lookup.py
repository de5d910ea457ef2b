"""Turns a table with knots into one threshold per row length."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .at_k import ThresholdExtrapolationWarning, ThresholdsAtK
from .grid import ThresholdGrid
from .kinds import MAX_LENGTH, Extrapolation, LookupForm
from .knots import Integers
from .rows import Rows, Source
from .targets import LayerAims, Target

# One threshold per row length, layer and head; 32 x 32 heads and 128 Ki tokens take 0.5 GiB.
_MAX_BYTES = 32 * 2**30


class Lookup:
    """Do the work of `ThresholdTable.at`: once what depends on the table, and the rest for each target.

    Args:
        table: the table.
        max_length, extrapolation, form: as ``max_length``, ``extrapolation`` and ``lookup`` of ``ThresholdTable.at``.
        discarded_mass: whether the table's discarded mass is wanted.
    """

    def __init__(
        self,
        table: ThresholdGrid,
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
        self.longest = max_length or int(table.lengths[-1])
        _check_size(table, self.longest)
        self._table = table
        self._extrapolation = extrapolation
        self._source = Source.of(table, self.longest, extrapolation, form, discarded_mass)

    def at(self, target: Target, device: torch.device | str = "cpu") -> ThresholdsAtK:
        """Look up the thresholds of ``target`` on ``device``, in tensors of their own."""
        table = self._table
        target.check(table, self.longest)
        destination = _checked_device(device)
        lengths = np.arange(self.longest + 1)
        # so that they can be written to outside of an inference mode that holds now
        with torch.inference_mode(False):
            # the last row stands for all that are longer, of which some are not dense
            within = dataclasses.replace(target, dense_below=min(target.dense_below, self.longest))
            rows = Rows(self._source, lengths)
            layers = [
                self._layer(rows, layer, within.aims(table, layer, lengths), destination)
                for layer in range(table.num_layers)
            ]
        targets, dense_up_to, theta, mass, aims = zip(*layers, strict=True)
        return ThresholdsAtK(
            k=target.k,
            target_kept=None if target.target_kept is None else float(target.target_kept),
            placement=table.placement,
            longest=self.longest,
            layer_targets=targets,
            dense_up_to=tuple(max(dense, target.dense_below - 1) for dense in dense_up_to),
            theta=theta,
            discarded_mass=None if mass[0] is None else mass,
            aims=aims,
            dense_below=target.dense_below,
        )

    def _layer(self, rows: Rows, layer: int, aims: LayerAims, device: torch.device) -> tuple[Any, ...]:
        """Work out the fields of `ThresholdsAtK` that are by layer."""
        theta = rows.theta(layer, aims)
        mass = rows.discarded_mass(layer, aims, theta)
        dense = np.flatnonzero(np.arange(self.longest + 1) <= aims.dense_up_to)
        elements = torch.from_numpy(np.full(self.longest + 1, aims.elements, dtype=np.int32)).to(device)
        return aims.least, int(dense[-1]), theta.to(device), None if mass is None else mass.to(device), elements

    def calibrated_rows(self, k_index: int, layer: int, lengths: Integers) -> NDArray[np.float32]:
        """Look up one knot of k in one layer at ``lengths`` [N]: float32 [Hq, N], -inf up to its calibrated k."""
        table = self._table
        aims = LayerAims(int(table.calibrated_targets[k_index, layer]))
        rows: NDArray[np.float32] = Rows(self._source, lengths).theta(layer, aims).numpy().T
        return rows

    def warn_beyond(self, stacklevel: int) -> None:
        """Warn if there are thresholds beyond the calibrated lengths."""
        table, calibrated = self._table, int(self._table.lengths[-1])
        if self.longest <= calibrated:
            return
        used = f"the thresholds of length {calibrated}"
        if self._extrapolation == "fitted":
            used = "the fitted function"
        dense = [layer for layer in range(table.num_layers) if not bool(table.counts[layer].any())]
        note = f"; layers {dense} have no thresholds and stay dense" if dense else ""
        warnings.warn(
            f"thresholds were calibrated for row lengths {int(table.lengths[0])} to {calibrated}, and "
            f"max_length={self.longest} was asked for; longer rows use {used} "
            f"(extrapolation={self._extrapolation!r}){note}",
            ThresholdExtrapolationWarning,
            stacklevel=stacklevel + 1,
        )


def _checked_device(device: torch.device | str) -> torch.device:
    if not isinstance(device, (str, torch.device)):
        raise TopThetaTypeError("device", "a torch.device or its name", type(device).__name__)
    try:
        found = torch.device(device)
        torch.empty(0, dtype=torch.float32, device=found)
    # a missing CUDA raises AssertionError, a missing plug-in ModuleNotFoundError, others NotImplementedError
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).split("\n")[0]
        remedy = "name one that this machine has, such as 'cpu'"
        raise TopThetaValueError("device", "a device of this machine", f"{device} ({reason})", remedy) from error
    return found


def _check_size(table: ThresholdGrid, longest: int) -> None:
    numbers = (longest + 1) * table.num_layers * table.num_heads * (1 if table.discarded_mass is None else 2)
    if 4 * numbers > _MAX_BYTES:
        got = f"{4 * numbers / 2**30:.0f} GiB for rows of up to {longest} elements"
        raise TopThetaValueError("max_length", f"thresholds of at most {_MAX_BYTES // 2**30} GiB", got, "lower it")
