"""Comparisons that the goals and the tables of the page share, from the results that are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_model_study import results
from benchmarks.real_model_study.analysis import Bounded, Runs, bootstrap, mean_of, percent, rows_ratio
from benchmarks.real_model_study.settings import BUDGETS, COMPARED_ROWS, EQUAL_KS, TAU, Part, budget, equal
from toptheta_npu.errors import TopThetaValueError

MISSING = "not measured yet"

EQUAL_THETA = tuple(arm.name for arm in equal(EQUAL_KS) if arm.method == "top-theta")
EQUAL_TOP_K = tuple(arm.name for arm in equal(EQUAL_KS) if arm.method == "top-k")
BUDGET_ARMS = tuple(budget(rows).name for rows in BUDGETS)
TAU_ARMS = tuple(arm.name for arm in TAU.arms if arm.method.startswith("tau:") and "lse=" not in arm.method)
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


def beside(folder: Path, part: Part, other: Part) -> tuple[Runs, Runs] | None:
    """Read two parts in the windows that both have so far; None without any."""
    texts = [results.read(folder / f"{each.name}.jsonl") for each in (part, other)]
    if len({header.get("windows") for header, _ in texts}) > 1:
        raise TopThetaValueError("windows", f"those of {other.name}", "others", f"remove {part.name}.jsonl")
    runs = [runs_of(folder, each) for each in (part, other)]
    if any(each is None for each in runs):
        return None
    shared = set.intersection(*({line["window"] for line in each.lines["dense"]} for each in runs if each is not None))
    first, second = (
        Runs.of([line for line in lines if line["window"] in shared], [arm.name for arm in each.arms])
        for each, (_, lines) in zip((part, other), texts, strict=True)
    )
    return first, second


def difference(ours: Runs, arm: str, theirs: Runs, names: Sequence[str]) -> Bounded | None:
    """Compare an arm with others at its own V rows, in percent; None where they were not measured there."""
    rows, curve = float(ours.value_rows[arm].mean()), theirs.curve(names)
    return percent(mean_of(ours.losses[arm] - curve.at(rows))) if curve.reaches(rows) else None


def at_share(runs: Runs, share: float) -> Bounded | None:
    """Give the loss of budgets at a share of the V rows of dense attention, in percent."""
    curve = runs.curve(BUDGET_ARMS)
    return percent(mean_of(curve.at(share * runs.keys))) if curve.reaches(share * runs.keys) else None


def loss_of(runs: Runs, arm: str) -> str:
    """Write the change of perplexity under the arm of this name."""
    return change_text(percent(mean_of(runs.losses[arm])))


def saving(runs: Runs) -> Bounded:
    """Tell how many times the V rows of budgets one k needs at equal loss."""
    return rows_ratio(runs.curve(EQUAL_THETA), runs.curve(COMPARED_ARMS))


def change_text(found: Bounded | None) -> str:
    return MISSING if found is None else found.text(sign=True, unit=" %")


def prediction_file(part: Part) -> str:
    """Name the file of predictions for the length of a part."""
    return f"prediction_{part.length}.jsonl"


@dataclass(frozen=True)
class Predicted:
    """A budget on one text at rows of one length: what the table predicts, and what the windows show."""

    text: str
    target: int
    length: int
    rows: tuple[float, float]
    error: tuple[float, float]
    ratio: Bounded


def predictions(file: Path, *, longest: bool = True) -> list[Predicted]:
    """Compare predicted with measured errors and V rows, by text and budget, at the longest rows or at every length."""
    header, lines = results.read(file)
    lengths = header.get("lengths", [])
    places = range(len(lengths))[-1 if longest else 0 :]
    return [
        _predicted(header, [line for line in lines if line["text"] == text], budget_number, place)
        for text in dict.fromkeys(line["text"] for line in lines)
        for place in places for budget_number in range(len(header["targets"]))
    ]  # fmt: skip


def _predicted(
    header: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], budget_number: int, place: int
) -> Predicted:
    squares, rows = (
        np.array([line[name][budget_number][place] for line in lines], dtype=np.float64)
        for name in ("error", "value_rows")
    )
    expected, expected_rows = (header["predicted"][name][budget_number][place] for name in ("error", "value_rows"))

    def ratio(windows: NDArray[np.int64]) -> float:
        return math.sqrt(expected / float(squares[windows].mean()))

    return Predicted(
        lines[0]["text"], header["targets"][budget_number], header["lengths"][place],
        (expected_rows, float(rows.mean())), (math.sqrt(expected), math.sqrt(float(squares.mean()))),
        bootstrap(ratio, len(squares)),
    )  # fmt: skip
