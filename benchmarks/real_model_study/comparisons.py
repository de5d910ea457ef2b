"""Comparisons that the goals and the tables of the page share, from the results that are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.real_model_study import results
from benchmarks.real_model_study.analysis import Bounded, Runs, bootstrap, mean_of, percent
from benchmarks.real_model_study.settings import BUDGETS, COMPARED_ROWS, EQUAL_KS, Arm, Part, budget, equal

MISSING = "not measured yet"

EQUAL_THETA = tuple(arm.name for arm in equal(EQUAL_KS) if arm.method == "top-theta")
EQUAL_TOP_K = tuple(arm.name for arm in equal(EQUAL_KS) if arm.method == "top-k")
BUDGET_ARMS = tuple(budget(rows).name for rows in BUDGETS)
COMPARED_ARMS = tuple(budget(rows).name for rows in COMPARED_ROWS)


def runs_of(folder: Path, part: Part) -> Runs | None:
    """Read what a part has so far; None without dense attention in any window."""
    _, lines = results.read(folder / f"{part.name}.jsonl")
    found = Runs.of(lines, [arm.name for arm in part.arms]) if any(line["arm"] == "dense" for line in lines) else None
    return found if found is not None and len(found.dense) else None


def against(runs: Runs, names: Sequence[str], value_rows: float) -> Bounded | None:
    """Compare budgets with other arms at the same V rows, in percent; None where either was not measured there."""
    curves = [runs.curve(each) for each in (BUDGET_ARMS, names)]
    if not all(curve.reaches(value_rows) for curve in curves):
        return None
    ours, theirs = (curve.at(value_rows) for curve in curves)
    return percent(mean_of(ours - theirs))


def at_share(runs: Runs, share: float) -> Bounded | None:
    """Give the loss of budgets at a share of the V rows of dense attention, in percent."""
    curve = runs.curve(BUDGET_ARMS)
    return percent(mean_of(curve.at(share * runs.keys))) if curve.reaches(share * runs.keys) else None


def loss_of(runs: Runs, arm: Arm) -> str:
    return percent(mean_of(runs.losses[arm.name])).text(sign=True, unit=" %")


def change_text(found: Bounded | None) -> str:
    return MISSING if found is None else found.text(sign=True, unit=" %")


def prediction_file(part: Part) -> str:
    """Name the file of predictions for the length of a part."""
    return f"prediction_{part.length}.jsonl"


@dataclass(frozen=True)
class Predicted:
    """A budget on one text at the longest rows: what the table predicts, and what the windows show."""

    text: str
    target: int
    rows: tuple[float, float]
    error: tuple[float, float]
    ratio: Bounded


def predictions(file: Path) -> list[Predicted]:
    """Compare predicted with measured errors and V rows, by text and budget."""
    header, lines = results.read(file)
    found = []
    for text in dict.fromkeys(line["text"] for line in lines):
        own = [line for line in lines if line["text"] == text]
        for place, target in enumerate(header["targets"]):
            squares = np.array([line["error"][place][-1] for line in own])
            wanted = header["predicted"]["error"][place][-1]
            rows = float(np.mean([line["value_rows"][place][-1] for line in own]))

            def ratio(windows: np.ndarray, squares: np.ndarray = squares, wanted: float = wanted) -> float:
                return math.sqrt(wanted / float(squares[windows].mean()))

            found.append(Predicted(
                text, target, (header["predicted"]["value_rows"][place][-1], rows),
                (math.sqrt(wanted), math.sqrt(float(squares.mean()))), bootstrap(ratio, len(squares)),
            ))  # fmt: skip
    return found
