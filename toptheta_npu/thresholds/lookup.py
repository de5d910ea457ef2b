"""Turns a table with knots into one threshold per row length."""

from __future__ import annotations

import warnings
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .at_k import ThresholdExtrapolationWarning, ThresholdsAtK
from .fit import ThresholdFit, fit_table, line_of, theta_of
from .grid import ThresholdGrid
from .kinds import MAX_LENGTH, LookupForm
from .knots import Floats, Integers, lerp, locate
from .targets import Target

# One threshold per row length, layer and head; 32 x 32 heads and 128 Ki tokens take 0.5 GiB.
_MAX_BYTES = 32 * 2**30


class Lookup:
    """Do the work of `ThresholdTable.at`: work that depends only on the table once, the rest for each target.

    Between knots, theta (after the softmax its logarithm) is linear in the logarithms of k and of the length.

    Args:
        table: the table.
        max_length, form: as ``max_length`` and ``lookup`` of ``ThresholdTable.at``.
        discarded_mass: whether to look up the table's discarded mass.
    """

    def __init__(
        self,
        table: ThresholdGrid,
        max_length: int | None = None,
        form: LookupForm = "tabulated",
        *,
        discarded_mass: bool = True,
    ) -> None:
        if form not in get_args(LookupForm):
            raise TopThetaValueError("lookup", " or ".join(get_args(LookupForm)), shown(form))
        if max_length is not None and (type(max_length) is not int or not 1 <= max_length <= MAX_LENGTH):
            raise TopThetaValueError("max_length", f"an int from 1 to {MAX_LENGTH}, or None", shown(max_length))
        self.longest = max_length or int(table.lengths[-1])
        _check_size(table, self.longest)
        self._table = table
        # [K, L, R, Hq]: all heads of a row are adjacent
        self._lines = np.ascontiguousarray(line_of(table.placement, table.theta).swapaxes(2, 3))
        self._masses: Floats | None = None
        if discarded_mass and table.discarded_mass is not None:
            self._masses = np.ascontiguousarray(table.discarded_mass.numpy().astype(np.float64).swapaxes(2, 3))
        self._fit = fit_table(table) if form == "fitted" else None

    def at(self, target: Target, device: torch.device | str = "cpu") -> ThresholdsAtK:
        """Look up the thresholds of ``target`` on ``device``, in tensors of their own."""
        table = self._table
        target.check(table)
        destination = _checked_device(device)
        # so that they can be written to after an active inference mode ends
        with torch.inference_mode(False):
            # the last row serves all longer rows, and some of these are not dense
            below, targets = min(target.dense_below, self.longest), table.layer_targets(target.k)
            layers = [
                self._layer(layer, layer_target, max(layer_target, below - 1), destination)
                for layer, layer_target in enumerate(targets)
            ]
        theta, mass, aims = zip(*layers, strict=True)
        return ThresholdsAtK(
            k=target.k,
            placement=table.placement,
            longest=self.longest,
            layer_targets=tuple(targets),
            dense_up_to=tuple(max(min(each, self.longest), target.dense_below - 1) for each in targets),
            theta=theta,
            discarded_mass=None if mass[0] is None else mass,
            aims=aims,
            dense_below=target.dense_below,
        )

    def _layer(self, layer: int, target: int, dense_up_to: int, device: torch.device) -> tuple[Any, ...]:
        """Compute thresholds, discarded mass and aims of a layer."""
        table, lengths = self._table, np.arange(self.longest + 1)
        by_k = locate(table.k.numpy(), np.array([target]), table.layer_k[layer])
        low, high, weight = int(by_k.low[0]), int(by_k.high[0]), float(by_k.weight[0])

        def between(values: Floats, fit: ThresholdFit | None = None) -> Floats:
            ends = [self._rows(values, k_index, layer, lengths, fit) for k_index in sorted({low, high})]
            return lerp(ends[0], ends[-1], weight) if weight else ends[0]

        theta = _float32(theta_of(table.placement, between(self._lines, self._fit)))
        theta[: dense_up_to + 1] = -torch.inf
        mass = None
        if self._masses is not None:
            mass = torch.where(theta > -torch.inf, _float32(between(self._masses)), 0.0).to(device)
        aims = torch.full((self.longest + 1,), target, dtype=torch.int32, device=device)
        return theta.to(device), mass, aims

    def _rows(
        self, values: Floats, k_index: int, layer: int, lengths: Integers, fit: ThresholdFit | None = None
    ) -> Floats:
        """Interpolate ``values`` [K, L, R, Hq] of one knot of k, or follow ``fit``, at ``lengths``: float64 [N, Hq].

        Only lengths above the calibrated k have a calibrated value. Shorter rows use the first such value: for a k
        between two knots it keeps nearly everything there. Without any value, it is -inf.
        """
        knots = self._table.lengths.numpy()
        usable = knots > int(self._table.calibrated_targets[k_index, layer])
        if not usable.any():
            return np.full((len(lengths), values.shape[-1]), -np.inf)
        if fit is not None:
            return fit.line(k_index, layer, np.maximum(lengths, knots[usable][0]))
        own, places = values[k_index, layer][usable], locate(knots[usable], lengths)
        return lerp(own[places.low], own[places.high], places.weight[:, None])

    def calibrated_rows(self, k_index: int, layer: int, lengths: Integers) -> NDArray[np.float32]:
        """Look up one knot of k in one layer at ``lengths`` [N]: float32 [Hq, N], -inf up to its calibrated k."""
        theta = theta_of(self._table.placement, self._rows(self._lines, k_index, layer, lengths))
        theta[lengths <= int(self._table.calibrated_targets[k_index, layer])] = -np.inf
        return theta.astype(np.float32).T

    def warn_beyond(self, stacklevel: int) -> None:
        """Warn if thresholds reach beyond the calibrated lengths."""
        table, calibrated = self._table, int(self._table.lengths[-1])
        if self.longest <= calibrated:
            return
        used = "the fitted function" if self._fit is not None else f"the thresholds of length {calibrated}"
        dense = [layer for layer in range(table.num_layers) if not bool(table.counts[layer].any())]
        note = f"; layers {dense} have no thresholds and stay dense" if dense else ""
        warnings.warn(
            f"thresholds were calibrated for row lengths {int(table.lengths[0])} to {calibrated}, and "
            f"max_length={self.longest} was asked for; longer rows use {used}{note}",
            ThresholdExtrapolationWarning,
            stacklevel=stacklevel + 1,
        )


def _float32(values: Floats) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


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
