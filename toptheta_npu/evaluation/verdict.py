"""Judges each method of an evaluation: whether it loses against dense, and which loss the samples cannot exclude."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .._tables import counted
from .measurement import Measurement
from .methods.kinds import parse_method
from .results import Point
from .summary import change

_FEWEST = 3  # samples whose spread says something
_SAMPLES = {"perplexity": "windows", "key-value": "prompts", "needle": "prompts"}


def verdicts(task: str, measurements: Mapping[Point, Measurement]) -> list[str]:
    """Write a line for every method of a task except dense; none if dense was not measured."""
    dense = next((each for point, each in measurements.items() if point.method == "dense"), None)
    if dense is None:
        return []
    several = len({point.table for point in measurements if point.table}) > 1
    lines = []
    for point, measurement in measurements.items():
        if point.method != "dense":
            k = "" if point.k is None else f"k = {point.k}"
            name = ", ".join(filter(None, (point.label, k, point.table if several else "")))
            told = verdict(measurement, dense, _SAMPLES.get(task, "documents"))
            kept_all = 0 < measurement.reads.keys_mean == measurement.reads.kept_mean
            if kept_all and parse_method(point.method).options.get("tau") != 0:  # 0 is to keep all
                told = "nothing was left out: every row kept all of its keys, as dense attention does"
            lines.append(f"{name}: {told}")
    return lines


def verdict(measurement: Measurement, dense: Measurement, samples: str = "samples") -> str:
    """Judge a method's loss by the 95 % interval of its change; ``samples`` is the word for the samples.

    Raises:
        TopThetaValueError: the two have different samples.

    Example:
        >>> from toptheta_npu.evaluation.reads import Reads
        >>> nothing = Reads(0, 0, 0, 0, 0)
        >>> scores = (2.0, 3.0, 4.0), (2.01, 3.02, 4.03)
        >>> dense, sparse = (Measurement("nats per token", False, each, nothing, nothing) for each in scores)
        >>> verdict(sparse, dense, "windows")
        'no loss seen; 3 windows cannot exclude 4.6 %'
    """
    found, count = change(measurement, dense), len(dense.scores)
    what = counted(count, samples)
    value, low, high = found.value, found.low, found.high
    if measurement.higher_is_better:
        value, low, high = -value, -high, -low
    if math.isnan(value) or math.isnan(low) or math.isnan(high):
        return f"nothing can be told from {what}: a score, or its difference to dense, is not finite"
    if count < _FEWEST:
        return f"nothing can be told from {what}; take more"
    if low > 0:
        return f"loss seen: {_amount(value, found.unit)} (95 % interval {_digits(low)} to {_amount(high, found.unit)})"
    if high < 0:
        return f"no loss seen: better than dense by {_digits(-high)} to {_amount(-low, found.unit)} (95 % interval)"
    if low == high:
        return f"no difference in {what}"
    return f"no loss seen; {what} cannot exclude {_amount(high, found.unit)}"


def _amount(value: float, unit: str) -> str:
    digits = _digits(value)
    return f"{digits} {unit.removesuffix('s') if digits == '1' else unit}"


def _digits(value: float) -> str:
    if 0 < abs(value) < 0.01:
        return "less than 0.01"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"
