"""The modelled figures of the pages and their file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import rounded
from emulator.ascendc import COLUMNS
from toptheta_npu.timing.report import one_row_a_line

from .calls import CALLS, PAPER_CALL, Call, Modelled, model
from .step import Measurement, constants

FILE = Path(__file__).resolve().parents[2] / "docs" / "results" / "modelled_kernel.json"


@dataclass(frozen=True)
class Figures:
    """What the tables show. Times are in microseconds, modelled and uncalibrated.

    Attributes:
        constants: those in which the columns differ, one value for each column.
        calls: the results of `CALLS`.
    """

    constants: Mapping[str, Sequence[float]]
    calls: Mapping[Call, Modelled]

    @property
    def paper(self) -> Modelled:
        return self.calls[PAPER_CALL]


def differing_constants() -> dict[str, list[float]]:
    """Find the constants of the model in which its columns differ."""
    columns = [constants(column) for column in COLUMNS]
    values = {name: [column[name] for column in columns] for name in columns[0]}
    return {name: own for name, own in values.items() if len(set(own)) > 1}


def collect() -> Figures:
    """Model everything."""
    return Figures(differing_constants(), {call: model(call) for call in CALLS})


def load() -> Figures:
    """Read the file."""
    stored = json.loads(FILE.read_text())
    rows = {row["call"]: row for row in stored["calls"]}
    calls = {call: _from_row(call, rows[str(call)]) for call in CALLS}
    return Figures(stored["constants"], calls)


def save(figures: Figures) -> None:
    """Write the file, floats to six digits."""
    stored = {
        "times": "modelled, uncalibrated",
        "constants": figures.constants,
        "calls": [as_row(result) for result in figures.calls.values()],
    }
    FILE.write_text(one_row_a_line(rounded(stored)) + "\n")


def as_row(result: Modelled) -> dict[str, Any]:
    """Convert a result to plain values."""
    forms = {form: asdict(getattr(result, form)) for form in ("kept", "dense")}
    return {"call": str(result.call), **forms, "without_cube": result.without_cube}


def _from_row(call: Call, row: Mapping[str, Any]) -> Modelled:
    return Modelled(call, Measurement(**row["kept"]), Measurement(**row["dense"]), row["without_cube"])
