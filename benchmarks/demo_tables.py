"""The table of docs/results.md on the embedded model, from the results of ``toptheta demo --full``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toptheta_npu._tables import Table
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.reads import Reads
from toptheta_npu.evaluation.results import Point, read_results
from toptheta_npu.evaluation.summary import change, score

RESULTS = Path(__file__).parents[1] / "docs/results/demo/results.jsonl"
_TASK = "perplexity"
_COLUMNS = ("method", "k", "ppl", "change", "kept", "V rows", "fewer", "V rows, all layers", "k̃/k")

Measured = tuple[Point, Measurement]


def committed() -> list[Measured]:
    """Read the committed points, those of one method together, in the order of their k."""
    points = list(read_results(RESULTS).of_task(_TASK).items())
    names = list(dict.fromkeys(_name(point) for point, _ in points))
    return sorted(points, key=lambda pair: (names.index(_name(pair[0])), pair[0].k or 0))


def table(points: Sequence[Measured]) -> Table:
    """Make the table of docs/results.md; the first point is the dense one."""
    rows = []
    for point, measurement in points:
        reads = measurement.reads
        ratio = f"{reads.kept_mean / point.k:.2f}" if point.k else ""
        rows.append([
            _name(point), _k(point), score(measurement), _change(measurement, points), f"{reads.kept_mean:.0f}",
            _spread(reads), _fewer(reads), _spread(measurement.reads_all), ratio,
        ])  # fmt: skip
    return Table("", _COLUMNS, rows)


def _name(point: Point) -> str:
    return f"{point.label}, live" if point.table == "live" else point.label


def _k(point: Point) -> str:
    return "" if point.k is None else str(point.k)


def _change(measurement: Measurement, points: Sequence[Measured]) -> str:
    dense = points[0][1]
    return "" if measurement is dense else str(change(measurement, dense))


def _spread(reads: Reads) -> str:
    return f"{reads.value_rows_mean:.0f} / {reads.value_rows_p95:.0f} / {reads.value_rows_max:.0f}"


def _fewer(reads: Reads) -> str:
    return f"{reads.value_row_saving:.1f}x" if reads.value_rows_mean else ""


if __name__ == "__main__":
    print(table(committed()).as_markdown())
