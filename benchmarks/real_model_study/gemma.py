"""The tables of docs/gemma.md, from the results that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.real_model_study.analysis import Runs
from benchmarks.real_model_study.comparisons import MISSING, beside, change_text, difference, loss_of, runs_of
from benchmarks.real_model_study.labels import label
from benchmarks.real_model_study.settings import GEMMA_POST, GEMMA_PRE, GEMMA_TAU, Part
from toptheta_npu._tables import Table

_TOP_K = [arm.name for arm in GEMMA_PRE.arms if arm.method == "top-k"]


def all_tables(folder: Path) -> dict[str, Table]:
    """Make everything that the page shows, by its place."""
    pair = beside(folder, GEMMA_TAU, GEMMA_PRE)
    found: Mapping[str, Table | None] = {
        "gemma tau": pair and one_probability(*pair),
        "gemma pre": thresholds(folder, GEMMA_PRE),
        "gemma post": thresholds(folder, GEMMA_POST),
    }
    return {name: table or Table("", (MISSING,), []) for name, table in found.items()}


def one_probability(ours: Runs, theirs: Runs) -> Table:
    """Compare one probability for all heads with exact Top-k, in the same windows at the same V rows."""
    rows = []
    for arm in GEMMA_TAU.arms[1:]:
        against = difference(ours, arm.name, theirs, _TOP_K)
        cell = "not measured there" if against is None else change_text(against)
        rows.append([label(arm), *_reads(ours, arm.name), loss_of(ours, arm.name), cell])
    columns = ("method", "V rows", "of dense", "perplexity against dense", "against Top-k with one k at these V rows")
    return Table(f"Gemma 3 270M, one probability for all heads, {len(ours.dense)} windows", columns, rows)


def thresholds(folder: Path, part: Part) -> Table | None:
    """Tabulate what thresholds of one kind lose and read; None: nothing was measured."""
    runs = runs_of(folder, part)
    if runs is None:
        return None
    rows = [
        [label(arm), *_reads(runs, arm.name), loss_of(runs, arm.name)]
        for arm in part.arms[1:] if arm.name in runs.losses
    ]  # fmt: skip
    columns = ("method", "V rows", "of dense", "perplexity against dense")
    return Table(f"Gemma 3 270M, {part.placement}, {len(runs.dense)} windows", columns, rows)


def _reads(runs: Runs, arm: str) -> list[str]:
    value_rows = float(runs.value_rows[arm].mean())
    return [f"{value_rows:.0f}", f"{100 * value_rows / runs.keys:.1f} %"]
