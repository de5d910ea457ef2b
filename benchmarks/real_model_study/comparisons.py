"""Comparisons that tables and pictures share, from the results that are kept."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real_model_study import results
from benchmarks.real_model_study.analysis import Bounded, Runs, mean_of, percent
from benchmarks.real_model_study.settings import EQUAL_KS, TAU, Part, equal
from toptheta_npu.errors import TopThetaValueError

EQUAL_THETA = tuple(arm.name for arm in equal(EQUAL_KS) if arm.method == "top-theta")
EQUAL_TOP_K = tuple(arm.name for arm in equal(EQUAL_KS) if arm.method == "top-k")
TAU_ARMS = tuple(arm.name for arm in TAU.arms if arm.method.startswith("tau:") and "lse=" not in arm.method)


def runs_of(folder: Path, part: Part) -> Runs | None:
    """Read what a part has so far; None without dense attention in any window."""
    _, lines = results.read(folder / f"{part.name}.jsonl")
    found = Runs.of(lines, [arm.name for arm in part.arms]) if any(line["arm"] == "dense" for line in lines) else None
    return found if found is not None and len(found.dense) else None


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


def loss_of(runs: Runs, arm: str) -> str:
    """Write the change of perplexity under the arm of this name."""
    return change_text(percent(mean_of(runs.losses[arm])))


def tail(runs: Runs, arm: str) -> str:
    """Divide the 95th percentile of the V rows of rows, layers and heads by their mean; empty where it was not kept."""
    ratios = [line["value_rows_p95"] / line["value_rows"] for line in runs.lines[arm] if "value_rows_p95" in line]
    return f"{statistics.mean(ratios):.1f}" if ratios else ""


def change_text(found: Bounded) -> str:
    return found.text(sign=True, unit=" %")
