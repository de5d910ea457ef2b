"""The tables of docs/real-model.md, from the results that are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.real_model_study import cost, task_tables
from benchmarks.real_model_study.analysis import Runs
from benchmarks.real_model_study.comparisons import (
    EQUAL_TOP_K,
    MISSING,
    beside,
    change_text,
    difference,
    loss_of,
    runs_of,
    tail,
)
from benchmarks.real_model_study.goals import Goal, Paragraphs, goals, says
from benchmarks.real_model_study.labels import label
from benchmarks.real_model_study.settings import (
    COMPENSATIONS,
    EQUAL_KS,
    FIRST_CHARACTER,
    FIRST_LAYERS_K,
    FOREIGN_SPLITS,
    HEADLINE,
    KS,
    LONGER,
    MIN_CHARACTERS,
    POST,
    SPLITS,
    TAU,
    TAU_ELSEWHERE,
    THRESHOLD_ROWS,
    Part,
)
from benchmarks.tables import figure_table
from toptheta_npu._tables import Table

#: The figure, among the results.
FIGURE = "tradeoff.png"
#: The other parts, by the names of their places.
OTHERS: Mapping[str, Part] = {
    "compensations": COMPENSATIONS,
    "8192": LONGER,
    "post": POST,
}


def tradeoff(part: Part, runs: Runs) -> Table:
    """Tabulate the loss of every arm and what it reads."""
    rows = []
    for arm in part.arms:
        if arm.name not in runs.losses:
            continue
        lines, value_rows = runs.lines[arm.name], float(runs.value_rows[arm.name].mean())
        key_rows = float(np.mean([line["key_rows"] for line in lines]))
        loss = "" if arm.method == "dense" else loss_of(runs, arm.name)
        both = 100 * (key_rows + value_rows) / (2 * runs.keys)
        rows.append([label(arm), f"{value_rows:.0f}", f"{100 * value_rows / runs.keys:.1f} %", f"{both:.0f} %", loss])
    columns = ("method", "V rows", "of dense", "K+V", "perplexity against dense")
    title = f"{part.text}, {part.length} keys, {len(runs.dense)} windows, perplexity {math.exp(runs.dense.mean()):.2f}"
    return Table(title, columns, rows)


def probabilities(ours: Runs, theirs: Runs) -> Table:
    """Compare one probability for all heads with exact Top-k, in the same windows at the same V rows."""
    rows = []
    for arm in TAU.arms:
        if arm.name in ours.losses and arm.method != "dense":
            value_rows = float(ours.value_rows[arm.name].mean())
            other = difference(ours, arm.name, theirs, EQUAL_TOP_K)
            cell = "not measured there" if other is None else change_text(other)
            share = f"{100 * value_rows / ours.keys:.1f} %"
            rows.append([label(arm), f"{value_rows:.0f}", tail(ours, arm.name), share, loss_of(ours, arm.name), cell])
    columns = ("method", "V rows", "p95 over mean", "of dense", "perplexity against dense",
               "against Top-k with one k at these V rows")  # fmt: skip
    return Table(f"One probability for all heads, {len(ours.dense)} windows", columns, rows)


def elsewhere(folder: Path) -> Table | None:
    """Tabulate one probability for all heads on other texts and at another length; None: nothing was measured."""
    rows = []
    for part in (TAU, *TAU_ELSEWHERE):
        runs = runs_of(folder, part)
        for arm in TAU_ELSEWHERE[0].arms[1:] if runs else ():
            if runs and arm.name in runs.losses:
                value_rows = float(runs.value_rows[arm.name].mean())
                rows.append([part.text, str(part.length), label(arm), f"{value_rows:.0f}",
                             f"{100 * value_rows / runs.keys:.1f} %", loss_of(runs, arm.name)])  # fmt: skip
    columns = ("text", "keys", "method", "V rows", "of dense", "perplexity against dense")
    return Table("One probability, other texts and lengths", columns, rows) if rows else None


def settings_table() -> Table:
    """Tabulate what was fixed before anything was measured."""
    documents = ", ".join(f"{count} {name}" for name, count in SPLITS.items() if name != "spare")
    foreign = ", ".join(f"{count} {name}" for name, count in FOREIGN_SPLITS.items())
    rows = [
        ["documents", f"longer than {MIN_CHARACTERS:,} characters; a window begins at character {FIRST_CHARACTER:,}"],
        ["prose by split", documents],
        ["jargon and Python by split", foreign],
        ["tokens predicted", f"the last {HEADLINE.positions} of every window"],
        ["thresholds", f"pre-softmax, pooled, k = {', '.join(map(str, KS))}; {100 * THRESHOLD_ROWS:g} % of the rows"],
        ["one k for all heads", f"{', '.join(map(str, EQUAL_KS))}, at least {FIRST_LAYERS_K} in the first two layers"],
        [
            "compensation",
            "exact SDC and VMC; of last-k, pages and BLASST neither, after two layers of Top-k",
        ],
    ]
    return Table("Settings", ("", "fixed"), rows)


def all_goals(folder: Path) -> list[Goal]:
    """List all that was asked of the real model, and of what calibration costs it."""
    return [*goals(folder), *cost.goals(folder, MISSING)]


def all_tables(folder: Path) -> dict[str, Table | Paragraphs]:
    """Make everything that the page shows, by its place."""
    runs = runs_of(folder, HEADLINE)
    empty = Table("", (MISSING,), [])
    found: dict[str, Table | Paragraphs] = {
        "real says": says(folder),
        "real figures": figure_table(all_goals(folder), figure="figure (95 % bounds)"),
        "real settings": settings_table(),
        "real figure": Paragraphs([f"![perplexity against V rows](results/real_model/{FIGURE})"] if runs else []),
    }
    shown: dict[str, Table | None] = {
        "real tradeoff": runs and tradeoff(HEADLINE, runs),
    }
    pair = beside(folder, TAU, HEADLINE)
    shown |= {"real tau": pair and probabilities(*pair), "real tau elsewhere": elsewhere(folder)}
    shown |= {"real retrieval": task_tables.retrieval(folder), "real answers": task_tables.answers(folder)}
    shown |= {"real cost": cost.passes_table(folder), "real windows": cost.windows_table(folder)}
    for name, part in OTHERS.items():
        other = runs_of(folder, part)
        shown[f"real {name}"] = tradeoff(part, other) if other and len(other.losses) > 1 else None
    return found | {name: table or empty for name, table in shown.items()}
