"""Fits the model's constants to measured times: Gauss-Newton with damping, on relative errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..timing.constants import Constant
from .gather_mask import READINGS

Floats = NDArray[np.float64]
#: From values of the constants the times of all calls, in microseconds.
Model = Callable[[Mapping[str, float]], Sequence[float]]
_STEPS = 40
_CLOSE = 1e-4
#: Of the derivatives, relative to where a constant starts.
_DIFFERENCE = 0.02


@dataclass(frozen=True)
class Free:
    """A number that is fitted.

    Attributes:
        sets: constants of emulator/ascendc/machine/cost.h, and what times the number each of them is.
        start: what the model has without a measurement.
    """

    sets: Mapping[str, float]
    start: float
    unit: str


FREE: tuple[Free, ...] = (
    Free({"gather_mask_repeat": 1}, READINGS["the documents"], "cycles"),
    Free({"vector_repeat": 1}, 1.0, "cycles"),
    Free({"launch_microseconds": 1}, 12.0, "us"),
    Free({"launch_mixed_microseconds": 1}, 15.0, "us"),
    # the cores together, and each of them, as cost.h has it for 48
    Free({"shared_cold": 48, "rate_cold": 1}, 16.8, "bytes per cycle"),
    Free({"scattered_row_bytes": 1}, 66.0, "bytes"),
    Free({"sync_all_microseconds": 1}, 1.5, "us"),
    Free({"cross_core_flag": 1}, 200.0, "cycles"),
)


@dataclass(frozen=True)
class Fit:
    """Constants by name, and how well they explain the times.

    Attributes:
        modelled: microseconds of each call with these constants.
        spread: root mean square of the relative errors that are left.
    """

    constants: Mapping[str, Constant]
    modelled: Sequence[float]
    spread: float


def fit(model: Model, measured: Sequence[float], free: Sequence[Free]) -> Fit:
    """Find the constants with which the model comes closest to measured times. Each time weighs as much as any other.

    Args:
        measured: microseconds, as many as the model gives.

    Example:
        >>> model = lambda constants: [constants["launch_microseconds"] + work for work in (1.0, 5.0, 50.0)]
        >>> fitted = fit(model, [4.0, 8.0, 53.0], [Free({"launch_microseconds": 1}, 12.0, "us")])
        >>> round(fitted.constants["launch_microseconds"].value, 3)
        3.0
    """
    times = np.asarray(measured, dtype=np.float64)

    def errors(scaled: Floats) -> Floats:
        return np.asarray(model(_constants(free, scaled)), dtype=np.float64) / times - 1

    scaled = np.ones(len(free))
    left, damping = errors(scaled), 1e-3
    slopes = _slopes(errors, scaled, left)
    for _ in range(_STEPS):
        normal = slopes.T @ slopes
        step = -np.linalg.pinv(normal + damping * np.diag(np.diag(normal))) @ slopes.T @ left
        tried = np.maximum(scaled + step, 0)
        got = errors(tried)
        if got @ got > left @ left:
            damping *= 10
            if damping > 1e6:
                break
            continue
        moved = np.abs(tried - scaled).max()
        scaled, left, damping = tried, got, damping / 10
        if moved < _CLOSE:
            break
        slopes = _slopes(errors, scaled, left)
    return _finished(free, scaled, left, slopes, times)


def _constants(free: Sequence[Free], scaled: Floats) -> dict[str, float]:
    return {
        name: float(factor * number * each.start)
        for each, number in zip(free, scaled, strict=True)
        for name, factor in each.sets.items()
    }


def _slopes(errors: Callable[[Floats], Floats], scaled: Floats, here: Floats) -> Floats:
    columns = []
    for place in range(len(scaled)):
        aside = scaled.copy()
        aside[place] += _DIFFERENCE
        columns.append((errors(aside) - here) / _DIFFERENCE)
    return np.stack(columns, 1)


def _finished(free: Sequence[Free], scaled: Floats, left: Floats, slopes: Floats, times: Floats) -> Fit:
    freedom = max(1, len(times) - len(free))
    variance = np.linalg.pinv(slopes.T @ slopes) * (left @ left) / freedom
    deviations = np.sqrt(np.maximum(np.diag(variance), 0))
    constants = {
        name: Constant(float(factor * number * each.start), float(factor * deviation * each.start), each.unit)
        for each, number, deviation in zip(free, scaled, deviations, strict=True)
        for name, factor in each.sets.items()
    }
    return Fit(constants, ((left + 1) * times).tolist(), float(np.sqrt(np.mean(left**2))))
