"""The rows of the study as tables of docs/calibration.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toptheta_npu._tables import Table
from toptheta_npu.evaluation.reads import KeptSpread, Reads
from toptheta_npu.evaluation.summary import change
from toptheta_npu.evaluation.tasks.perplexity import Result

Row = Mapping[str, Any]
_FIGURES = (
    "perplexity against dense",
    "k̃/k",
    "of windows",
    "of heads",
    "p95 of rows",
    "V rows: mean",
    "p95",
    "largest",
)
#: By the names of their places: the part of the study, its title, and what its rows differ in.
TABLES = {
    "sizes long": ("long windows", "Calibration windows of 2560 tokens", ("placement", "windows")),
    "sizes short": ("short windows", "Calibration windows of 1024 tokens", ("placement", "windows")),
    "estimators": ("estimators", "Estimators", ("placement", "label", "k")),
    "ways": ("ways to k", "Ways to k = 64", ("placement", "label")),
    "forms": ("forms", "Thresholds as functions of the row length", ("placement", "label")),
    "texts": ("other text", "Thresholds from other text", ("placement", "label")),
}


def tables(rows: Sequence[Row]) -> dict[str, Table]:
    """Make all tables, by the names of their places."""
    return {f"study {name}": _table(rows, *wanted) for name, wanted in TABLES.items()}


def of_part(rows: Iterable[Row], part: str) -> list[Row]:
    """Select the rows of one part, in their order."""
    return [row for row in rows if row["part"] == part]


def result_of(row: Row) -> Result:
    """Restore what was measured, as the harness gave it."""
    reads = Reads(**row["reads"])
    spread = None if row["spread"] is None else KeptSpread(**row["spread"])
    return Result(row["label"], row.get("k"), tuple(row["nats"]), row["kept_over_k"], reads, reads, spread)


def dense_of(rows: Iterable[Row], row: Row) -> Result:
    """Find the result of dense attention on the same windows."""
    return next(result_of(each) for each in rows if each["part"] == "dense" and each["text"] == row["text"])


def _table(rows: Sequence[Row], part: str, title: str, labels: tuple[str, ...]) -> Table:
    names = [{"windows": "windows", "label": ""}.get(label, label) for label in labels]
    body = [
        [*(str(row[label]).replace("_", "-") for label in labels), *_figures(result_of(row), dense_of(rows, row))]
        for row in of_part(rows, part)
    ]
    return Table(title, (*names, *_FIGURES), body)


def _figures(result: Result, dense: Result) -> list[str]:
    spread, reads = result.spread, result.reads
    assert spread is not None
    return [
        str(change(result.measurement, dense.measurement)),
        f"{result.kept_over_k:.2f}",
        f"{spread.least_window:.2f} to {spread.most_window:.2f}",
        f"{spread.least_head:.2f} to {spread.most_head:.2f}",
        f"{spread.p95:.2f}",
        f"{reads.value_rows_mean:.0f}",
        f"{reads.value_rows_p95:.0f}",
        f"{reads.value_rows_max:.0f}",
    ]
