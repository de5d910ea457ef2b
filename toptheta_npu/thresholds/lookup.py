"""From a table with knots to one threshold per row length, ready for a decode step."""

from __future__ import annotations

import bisect
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .checks import MAX_LENGTH
from .fit import ThresholdFit, line_of, theta_of
from .knots import Floats, Integers, interpolate, lerp

if TYPE_CHECKING:
    from .table import Placement, ThresholdTable

# The scratch of a pass stays in the second-level cache.
_LENGTHS_PER_PASS = 2048
# One threshold per row length, layer and head; 32 x 32 heads and 128 Ki tokens take 0.5 GiB.
_MOST_BYTES = 32 * 2**30

Extrapolation = Literal["nearest", "fitted"]


class ThresholdExtrapolationWarning(UserWarning):
    """Thresholds were asked for at row lengths beyond the calibrated ones."""


class MeanDiscardedMassWarning(UserWarning):
    """``sdc="offline"`` is to use the mean discarded mass, which a few rows make far too large for most."""


@dataclass(frozen=True, eq=False)
class ThresholdsAtK:
    """Thresholds of one k on one device, a row per length.

    A decode step is one indexing operation without host synchronisation: ``theta[layer][n]`` with n an
    int64 device tensor [B] gives [B, Hq]; :meth:`rows` clamps first.

    Attributes:
        k: elements to keep per row.
        placement: ``"pre_softmax"`` (theta in units of the scaled score) or ``"post_softmax"``.
        longest: N, the last length with a row of its own.
        layer_targets: the effective k of every layer; rows of at most that length are dense.
        theta: per layer float32 [N+1, Hq]; -inf in the rows 0 to the layer's effective k.
        discarded_mass: per layer float32 [N+1, Hq] relative to exp(row max), 0 where theta is -inf;
            None if the table has none.
    """

    k: int
    placement: Placement
    longest: int
    layer_targets: tuple[int, ...]
    theta: tuple[Tensor, ...]
    discarded_mass: tuple[Tensor, ...] | None

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

    def _rows(self, source: tuple[Tensor, ...], layer: int, lengths: Tensor) -> Tensor:
        if not 0 <= layer < len(source):
            raise TopThetaValueError("layer", f"0 to {len(source) - 1}", str(layer))
        if lengths.dtype not in (torch.int32, torch.int64):
            raise TopThetaTypeError("lengths", "int32 or int64", str(lengths.dtype))
        return source[layer][lengths.to(torch.int64).clamp(0, self.longest)]


def expand(
    table: ThresholdTable,
    k: int,
    device: torch.device | str,
    max_length: int | None,
    extrapolation: Extrapolation,
) -> ThresholdsAtK:
    """The work of ``ThresholdTable.at``."""
    if extrapolation not in get_args(Extrapolation):
        raise TopThetaValueError("extrapolation", " or ".join(get_args(Extrapolation)), shown(extrapolation))
    if max_length is not None and (type(max_length) is not int or not 1 <= max_length <= MAX_LENGTH):
        raise TopThetaValueError("max_length", f"an int from 1 to {MAX_LENGTH}, or None", shown(max_length))
    targets = table.layer_targets(k)
    calibrated = int(table.lengths[-1])
    longest = max_length or calibrated
    destination = _checked_device(device)
    _check_size(table, longest)
    fit = None
    if longest > calibrated:
        _warn(table, longest, extrapolation)
        fit = table.fit() if extrapolation == "fitted" else None
    theta, mass = [], []
    for layer in range(table.num_layers):
        rows, mass_rows = _layer_rows(table, k, layer, longest, fit)
        theta.append(torch.from_numpy(rows).to(destination))
        if mass_rows is not None:
            mass.append(torch.from_numpy(mass_rows).to(destination))
    return ThresholdsAtK(
        k=k,
        placement=table.placement,
        longest=longest,
        layer_targets=tuple(targets),
        theta=tuple(theta),
        discarded_mass=tuple(mass) or None,
    )


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


def _layer_rows(
    table: ThresholdTable, k: int, layer: int, longest: int, fit: ThresholdFit | None
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Thresholds and discarded mass, each [longest + 1, Hq]."""
    theta = np.empty((longest + 1, table.num_heads), dtype=np.float32)
    mass = None if table.discarded_mass is None else np.empty_like(theta)
    for start in range(0, longest + 1, _LENGTHS_PER_PASS):
        lengths = np.arange(start, min(start + _LENGTHS_PER_PASS, longest + 1))
        rows = theta_rows(table, k, layer, lengths, fit)
        theta[lengths] = rows.T
        if mass is not None and table.discarded_mass is not None:
            mass_rows = _mass_rows(table, table.discarded_mass, k, layer, lengths)
            mass[lengths] = np.where(rows == -np.inf, 0.0, mass_rows).T
    return theta, mass


def theta_rows(
    table: ThresholdTable, k: int, layer: int, lengths: Integers, fit: ThresholdFit | None = None
) -> NDArray[np.float32]:
    """Thresholds of one layer at ``lengths`` [N]: float32 [Hq, N], -inf up to the layer's effective k."""
    lower, upper, weight = _between(table, k, layer)
    ends = []
    for k_index in (lower, upper):
        line = line_of(table.placement, table.theta[k_index, layer])
        values = _over_lengths(table, line, k_index, layer, lengths)
        beyond = lengths > int(table.lengths[-1])
        if fit is not None and beyond.any():
            values[:, beyond] = fit.line(k_index, layer, lengths[beyond])
        ends.append(values)
    mixed = theta_of(table.placement, lerp(ends[0], ends[1], weight))
    mixed[:, lengths <= table.layer_targets(k)[layer]] = -np.inf
    return mixed.astype(np.float32)


def _mass_rows(table: ThresholdTable, mass: Tensor, k: int, layer: int, lengths: Integers) -> Floats:
    lower, upper, weight = _between(table, k, layer)
    low, high = (
        _over_lengths(table, mass[k_index, layer].numpy().astype(np.float64), k_index, layer, lengths)
        for k_index in (lower, upper)
    )
    return lerp(low, high, weight)


def _between(table: ThresholdTable, k: int, layer: int) -> tuple[int, int, float]:
    """The k knots around ``k`` and how far between them it lies, in the log of the layer's effective k."""
    knots: list[int] = table.k.tolist()
    upper = bisect.bisect_left(knots, k)
    lower = upper if knots[upper] == k else upper - 1
    low, target, high = (table.layer_targets(each)[layer] for each in (knots[lower], k, knots[upper]))
    return lower, upper, 0.0 if low == high else math.log(target / low) / math.log(high / low)


def _over_lengths(table: ThresholdTable, values: Floats, k_index: int, layer: int, lengths: Integers) -> Floats:
    """``values`` [Hq, R] of one k and layer, interpolated to ``lengths`` [N].

    Only lengths above the effective k carry a calibrated value. Below them the first such value is used:
    for a k between two knots it stands in for "nearly everything", which is what it means there.
    """
    knots = table.lengths.numpy()
    usable = knots > table.layer_targets(int(table.k[k_index]))[layer]
    if not usable.any():
        return np.full((len(values), len(lengths)), -np.inf)
    return interpolate(values[:, usable], knots[usable], np.maximum(lengths, 1))


def _warn(table: ThresholdTable, longest: int, extrapolation: Extrapolation) -> None:
    first, last = int(table.lengths[0]), int(table.lengths[-1])
    used = f"the thresholds of length {last}" if extrapolation == "nearest" else "the fitted function"
    dense = [layer for layer in range(table.num_layers) if not bool(table.counts[layer].any())]
    note = f"; layers {dense} have no thresholds and stay dense" if dense else ""
    warnings.warn(
        f"thresholds were calibrated for row lengths {first} to {last}, and max_length={longest} was asked "
        f"for; longer rows use {used} (extrapolation={extrapolation!r}){note}",
        ThresholdExtrapolationWarning,
        stacklevel=4,
    )
