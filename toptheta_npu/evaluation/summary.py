"""Shows the points of an evaluation as tables: each method's score, its change against dense, and its reads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .._tables import Table, counted
from ..errors import TopThetaValueError
from .measurement import Measurement, perplexity
from .results import Point, Results
from .student import student_quantile

_COLUMNS = ("method", "thresholds", "k", "score", "against dense", "kept", "V rows", "K+V", "k̃/k")
_LARGE = 1e6  # from here on, all digits of a perplexity would fill the table
#: Prefixes of metrics that are losses in nats per token, word or byte.
_NATS = "nats per "


class Change(NamedTuple):
    """A difference to dense, in ``unit``.

    Attributes:
        value: the mean difference.
        standard_error: its standard error; None for one sample, which has no spread.
        low, high: its 95 % interval; infinite without a spread, NaN if the difference is not finite.
        unit: "%" of perplexity, percentage "points", or the metric.
    """

    value: float
    standard_error: float | None
    low: float
    high: float
    unit: str

    def __str__(self) -> str:
        digits = ".2f" if abs(self.value) < _LARGE else ".2g"
        error = "" if self.standard_error is None else f" ± {self.standard_error:{digits}}"
        return f"{self.value:+{digits}}{error} {self.unit}"


def change(measurement: Measurement, dense: Measurement) -> Change:
    """Compare a measurement with the dense one, sample by sample. Samples count as independent.

    For losses in nats the result is the change of perplexity in percent. For scores between 0 and 1 it is the
    difference of their means in percentage points, for other scores the plain difference. The interval is Student's t
    interval. If every score is 0 or 1, error and interval follow Agresti and Min (2005, doi:10.1002/sim.1781). They add
    half a sample to each of the four outcomes of a pair, so without any difference they are small but not 0.

    Raises:
        TopThetaValueError: the two have different samples.

    Example:
        >>> from toptheta_npu.evaluation.reads import Reads
        >>> nothing = Reads(0, 0, 0, 0, 0)
        >>> dense, sparse = (Measurement("acc", True, scores, nothing, nothing) for scores in ((1, 1), (1, 0)))
        >>> change(sparse, dense).value
        -50.0
    """
    pairs = _differences(measurement, dense)
    count, mean = len(pairs), statistics.fmean(pairs)
    error: float | None = None
    half = math.inf
    if are_answers(measurement) and are_answers(dense):
        error = _paired_proportions_error(pairs)
        half = student_quantile(None) * error
    elif count > 1:
        error = statistics.stdev(pairs) / math.sqrt(count) if all(map(math.isfinite, pairs)) else math.nan
        half = student_quantile(count - 1) * error
    ends = (mean - half, mean + half)
    if is_loss(measurement):
        factor = perplexity(mean)
        scaled = None if error is None else 100 * factor * error
        low, high = (100 * (perplexity(end) - 1) for end in ends)
        return Change(100 * (factor - 1), scaled, low, high, "%")
    if not (are_shares(measurement) and are_shares(dense)):
        return Change(mean, error, *ends, measurement.metric)
    low, high = (100 * min(max(end, -1.0), 1.0) for end in ends)
    return Change(100 * mean, None if error is None else 100 * error, low, high, "points")


def has_finite_score(measurement: Measurement) -> bool:
    """Tell whether the scores, and the perplexity of losses, are neither NaN nor infinite."""
    mean = statistics.fmean(measurement.scores)
    return math.isfinite(perplexity(mean) if is_loss(measurement) else mean)


def is_loss(measurement: Measurement) -> bool:
    """Tell whether scores are losses in nats, which are shown as perplexity."""
    return measurement.metric.startswith(_NATS)


def are_shares(measurement: Measurement) -> bool:
    """Tell whether all scores lie between 0 and 1."""
    return all(0 <= score <= 1 for score in measurement.scores)


def are_answers(measurement: Measurement) -> bool:
    """Tell whether all scores are 0 or 1, wrong or right."""
    return set(measurement.scores) <= {0.0, 1.0}


def _differences(measurement: Measurement, dense: Measurement) -> list[float]:
    if len(measurement.scores) != len(dense.scores):
        have, want = len(measurement.scores), len(dense.scores)
        raise TopThetaValueError("scores", f"{want}, as dense has them", str(have), "evaluate both on the same samples")
    return [ours - theirs for ours, theirs in zip(measurement.scores, dense.scores, strict=True)]


def _paired_proportions_error(differences: Sequence[float]) -> float:
    """Compute the standard error of a mean of differences between answers, by Agresti and Min (see `change`)."""
    gained, lost = (sum(difference == sign for difference in differences) for sign in (1, -1))
    count = len(differences) + 2
    return math.sqrt(gained + lost + 1 - (gained - lost) ** 2 / count) / count


def score(measurement: Measurement) -> str:
    """Write the score for people: a perplexity, a mean of shares in percent, or a mean.

    Example:
        >>> from toptheta_npu.evaluation.reads import Reads
        >>> nothing = Reads(0, 0, 0, 0, 0)
        >>> score(Measurement("accuracy", True, (1.0, 0.0), nothing, nothing))
        '50.0 %'
    """
    mean = statistics.fmean(measurement.scores)
    if is_loss(measurement):
        value = perplexity(mean)
        return f"{value:.3f}" if value < _LARGE else f"{value:.3g}"
    return f"{100 * mean:.1f} %" if are_shares(measurement) else f"{mean:.2f}"


def score_name(measurement: Measurement) -> str:
    """Name the quantity that `score` shows."""
    if not is_loss(measurement):
        return measurement.metric
    unit = measurement.metric.removeprefix(_NATS)
    return "perplexity" if unit == "token" else f"{unit} perplexity"


def key_value_share(measurement: Measurement) -> float | None:
    """Divide the K and V rows read by the rows that dense attention reads, in the layers from 2 on."""
    reads = measurement.reads
    if reads.key_rows_mean is None or not reads.keys_mean:
        return None
    return (reads.key_rows_mean + reads.value_rows_mean) / (2 * reads.keys_mean)


def tables_of(results: Results) -> list[Table]:
    """Make a table per task."""
    return [task_table(task, results.of_task(task)) for task in results.tasks]


def task_table(task: str, measurements: Mapping[Point, Measurement]) -> Table:
    """Tabulate the methods of one task; methods with the same label stay together."""
    dense = next((each for point, each in measurements.items() if point.method == "dense"), None)
    first = next(iter(measurements.values()))
    count = len(first.scores)
    columns = [score_name(first) if column == "score" else column for column in _COLUMNS]
    rows = [_row(point, measurement, dense) for point, measurement in measurements.items()]
    caption = (
        f"{counted(count, 'samples')}; against dense with the standard error of the differences, sample by sample. "
        "Layers from 2 on: kept, elements per row and head; V rows per row and KV group, mean / p95 / max; K+V, "
        "of the rows that dense attention reads."
    )
    return Table(task, columns, rows, caption)


def _row(point: Point, measurement: Measurement, dense: Measurement | None) -> list[str]:
    reads = measurement.reads
    share = key_value_share(measurement)
    return [
        point.label,
        point.table or "",
        "" if point.k is None else str(point.k),
        score(measurement),
        "" if dense is None or measurement is dense else str(change(measurement, dense)),
        f"{reads.kept_mean:.0f}",
        f"{reads.value_rows_mean:.0f} / {reads.value_rows_p95:.0f} / {reads.value_rows_max:.0f}",
        "" if share is None else f"{100 * share:.0f} %",
        "" if reads.kept_over_target is None else f"{reads.kept_over_target:.2f}",
    ]
