"""Says what an evaluation tells of each method: whether it loses against dense, and what the samples cannot exclude."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from .measurement import Measurement, perplexity
from .results import Point
from .summary import are_answers, are_shares, differences, is_loss, paired_proportions_error
from .summary import spread as spread_of

#: Losses that samples should tell: of perplexity in nats (half a percent), and of shares (a point).
_TOLD_NATS = math.log(1.005)
_TOLD_SHARE = 0.01
_FEWEST = 3  # samples whose spread says something
_MANY = 1000  # degrees of freedom from which the normal law will do: it is 0.13 % less there
_MAX_SAMPLES = 10**7
_NORMAL = statistics.NormalDist().inv_cdf(0.975)
_SAMPLES = {"perplexity": "windows", "key-value": "prompts", "needle": "prompts"}


class Verdict(NamedTuple):
    """What paired samples say of a method's loss against dense, in ``unit``.

    Attributes:
        loss: the mean; below 0 is a gain.
        low, high: the 95 % interval of it; infinite where there are too few samples, NaN where the loss is not finite.
        unit: "%" of perplexity, "points" of a share, or the metric.
        samples: how many there were.
        told: a loss that is worth to be told, 0.5 % or 1 point; None for another metric.
        enough: samples whose interval would reach ``told`` to each side, with the spread seen; None if that is unknown.
    """

    loss: float
    low: float
    high: float
    unit: str
    samples: int
    told: float | None
    enough: int | None

    def in_words(self, samples: str = "samples") -> str:
        """Write it as one line of plain English; ``samples`` names what was scored.

        Example:
            >>> Verdict(0.4, -0.8, 1.6, "%", 4, 0.5, 24).in_words("windows")
            'no loss seen; 4 windows cannot exclude 1.6 %; 24 would tell 0.5 %'
        """
        what = samples.removesuffix("s") if self.samples == 1 else samples
        if math.isnan(self.low):
            return f"nothing can be told from {self.samples} {what}: a score, or its difference to dense, is not finite"
        if self.samples < _FEWEST:
            return f"nothing can be told from {self.samples} {what}; take more"
        if self.low > 0:
            return f"loss seen: {self._amount(self.loss)} (95 % interval {self._range(self.low, self.high)})"
        if self.high < 0:
            return f"no loss seen: better than dense by {self._range(-self.high, -self.low)} (95 % interval)"
        if self.low == self.high:
            return f"no difference in {self.samples} {samples}"
        words = f"no loss seen; {self.samples} {samples} cannot exclude {self._amount(self.high)}"
        if self.enough is not None and self.told is not None and self.enough > self.samples:
            words += f"; {self.enough} would tell {self._amount(self.told)}"
        return words

    def _range(self, low: float, high: float) -> str:
        return f"{_digits(low)} to {self._amount(high)}"

    def _amount(self, value: float) -> str:
        digits = _digits(value)
        return f"{digits} {self.unit.removesuffix('s') if digits == '1' else self.unit}"


def _digits(value: float) -> str:
    if 0 < abs(value) < 0.01:
        return "less than 0.01"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def verdicts(task: str, measurements: Mapping[Point, Measurement]) -> list[str]:
    """Write a line for every method of a task but dense; none where dense was not measured."""
    dense = next((each for point, each in measurements.items() if point.method == "dense"), None)
    if dense is None:
        return []
    several = len({point.table for point in measurements if point.table}) > 1
    lines = []
    for point, measurement in measurements.items():
        if point.method != "dense":
            k = "" if point.k is None else f"k = {point.k}"
            name = ", ".join(filter(None, (point.label, k, point.table if several else "")))
            lines.append(f"{name}: {verdict(measurement, dense).in_words(_SAMPLES.get(task, 'documents'))}")
    return lines


def verdict(measurement: Measurement, dense: Measurement) -> Verdict:
    """Bound a method's loss by its paired differences to dense.

    Losses in nats and other scores have the interval of Student's t, answers that are right or wrong that of `change`.
    Both take samples as independent of each other.

    Raises:
        TopThetaValueError: the two have other samples.

    Example:
        >>> from toptheta_npu.evaluation.reads import Reads
        >>> nothing = Reads(0, 0, 0, 0, 0)
        >>> scores = (2.0, 3.0, 4.0), (2.01, 3.02, 4.03)
        >>> dense, sparse = (Measurement("nats per token", False, each, nothing, nothing) for each in scores)
        >>> verdict(sparse, dense).in_words("windows")
        'no loss seen; 3 windows cannot exclude 4.6 %; 18 would tell 0.5 %'
    """
    better = differences(measurement, dense)
    worse = [-each for each in better] if measurement.higher_is_better else better
    count, loss = len(worse), statistics.fmean(worse)
    in_nats, shares = is_loss(measurement), are_shares(measurement) and are_shares(dense)
    told = _TOLD_NATS if in_nats else _TOLD_SHARE if shares else None
    unit = "%" if in_nats else "points" if shares else measurement.metric

    def shown(value: float) -> float:
        if in_nats:
            return 100 * (perplexity(value) - 1) if value > 1 else 100 * math.expm1(value)
        return 100 * min(max(value, -1.0), 1.0) if shares else value

    if not math.isfinite(loss):
        return Verdict(loss, math.nan, math.nan, unit, count, told and shown(told), None)
    if count < _FEWEST:
        return Verdict(shown(loss), -math.inf, math.inf, unit, count, told and shown(told), None)
    answers = are_answers(measurement) and are_answers(dense)
    spread = paired_proportions_error(worse) * math.sqrt(count + 2) if answers else spread_of(worse)
    half = _half_width(spread, count, answers)
    enough = None
    if told is not None and _half_width(spread, _MAX_SAMPLES, answers) <= told:
        counts = range(_FEWEST, _MAX_SAMPLES)
        enough = counts[bisect_left(counts, True, key=lambda count: _half_width(spread, count, answers) <= told)]
    return Verdict(shown(loss), shown(loss - half), shown(loss + half), unit, count, told and shown(told), enough)


def _half_width(spread: float, count: int, answers: bool) -> float:
    """Compute half the 95 % interval of a mean of ``count`` differences with such a standard deviation."""
    if answers:  # to which two are added
        return _NORMAL * spread / math.sqrt(count + 2)
    return student_quantile(count - 1) * spread / math.sqrt(count)


@lru_cache
def student_quantile(freedom: int) -> float:
    """Compute what Student's t with such degrees of freedom stays below in 97.5 % of all cases.

    Example:
        >>> [round(student_quantile(freedom), 3) for freedom in (2, 3, 10)]
        [4.303, 3.182, 2.228]
    """
    if freedom > _MANY:
        return _NORMAL
    low, high = _NORMAL, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return low


def _within(t: float, freedom: int) -> float:
    """Compute P(|T| <= t), by the finite sum that it is for whole degrees (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    odd, cosine = freedom % 2, math.cos(angle)
    term, total = (cosine if odd else 1.0), 0.0
    for j in range(2 + odd, freedom + 1, 2):
        total += term
        term *= (j - 1) / j * cosine**2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
