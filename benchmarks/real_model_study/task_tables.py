"""The table of questions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.real_model_study import results
from benchmarks.real_model_study.settings import DENSE, QUESTIONS, Arm, label
from toptheta_npu._tables import Table
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.reads import Reads
from toptheta_npu.evaluation.summary import change

RETRIEVAL = "retrieval.jsonl"
#: The least share that dense attention must answer rightly for a cell to count.
MIN_SHARE = 0.5
_NOTHING = Reads(0, 0, 0, 0, 0)
_KINDS = {"needle": "number", "key_value": "list"}


def retrieval(folder: Path) -> Table | None:
    """Tabulate right answers by kind and length, and their change against dense attention where that answers."""
    _, lines = results.read(folder / RETRIEVAL)
    by_arm = {arm: _answered(lines, arm) for arm in QUESTIONS.arms}
    asked = set.intersection(*(set(each) for each in by_arm.values()))
    cells = sorted({key[:2] for key in asked}, key=lambda cell: (cell[0] != "needle", cell[1]))
    if not cells:
        return None
    shares = {cell: _share(by_arm[DENSE], asked, cell) for cell in cells}
    counted = sorted(key for key in asked if shares[key[:2]] >= MIN_SHARE)
    rows = [
        [label(arm), *(f"{100 * _share(found, asked, cell):.0f} %" for cell in cells),
         "" if arm == DENSE or not counted else str(change(_scores(found, counted), _scores(by_arm[DENSE], counted))),
         f"{statistics.fmean(found[key]['value_rows'] for key in asked):.0f}"]
        for arm, found in by_arm.items()
    ]  # fmt: skip
    columns = ("method", *(f"{_KINDS[kind]}, {length}" for kind, length in cells), "against dense", "V rows")
    return Table(f"Right answers, {len(asked)} questions, {len(counted)} of them where dense answers", columns, rows)


_Key = tuple[str, int, float, int]


def _answered(lines: Sequence[Mapping[str, Any]], arm: Arm) -> dict[_Key, Mapping[str, Any]]:
    return {(line["kind"], line["length"], line["depth"], line["seed"]): line
            for line in lines if line["arm"] == arm.name}  # fmt: skip


def _share(found: Mapping[_Key, Mapping[str, Any]], asked: set[_Key], cell: tuple[str, int]) -> float:
    return statistics.fmean(found[key]["right"] for key in asked if key[:2] == cell)


def _scores(found: Mapping[_Key, Mapping[str, Any]], keys: Sequence[_Key]) -> Measurement:
    return Measurement("accuracy", True, tuple(float(found[key]["right"]) for key in keys), _NOTHING, _NOTHING)
