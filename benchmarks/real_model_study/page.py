"""The tables of docs/real-model.md, from the results that are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.real_model_study import cost, criteria, task_tables
from benchmarks.real_model_study.analysis import Runs, mean_of, percent, rows_ratio
from benchmarks.real_model_study.comparisons import (
    BUDGET_ARMS,
    EQUAL_THETA,
    EQUAL_TOP_K,
    MISSING,
    Predicted,
    against,
    beside,
    change_text,
    difference,
    loss_of,
    prediction_file,
    predictions,
    runs_of,
)
from benchmarks.real_model_study.goals import Goal, Paragraphs, goals, says
from benchmarks.real_model_study.labels import label
from benchmarks.real_model_study.settings import (
    BUDGETS,
    COMPARED_ROWS,
    COMPENSATIONS,
    CURVE_ROWS,
    EQUAL_KS,
    FIRST_CHARACTER,
    FIRST_LAYERS_K,
    FOREIGN,
    FOREIGN_SPLITS,
    HEADLINE,
    KS,
    LEAST_CHARACTERS,
    LONGER,
    POST,
    RESAMPLES,
    SHORTER,
    SPLITS,
    TAU,
    TAU_ELSEWHERE,
    THRESHOLD_ROWS,
    Part,
    budget,
)
from benchmarks.tables import figure_table
from toptheta_npu._tables import Table

#: The figure, among the results.
FIGURE = "tradeoff.png"
#: The other parts, by the names of their places.
OTHERS: Mapping[str, Part] = {
    "compensations": COMPENSATIONS,
    "8192": LONGER,
    "2048": SHORTER,
    **{part.text: part for part in FOREIGN},
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


def ratios(runs: Runs) -> Table:
    """Tabulate how many times the V rows of every budget an equal k needs for the same loss."""
    plain, top_k = runs.curve(EQUAL_THETA), runs.curve(EQUAL_TOP_K)
    rows = []
    for rows_aimed, arm in zip(BUDGETS, BUDGET_ARMS, strict=True):
        if arm in runs.losses:
            one = runs.curve([arm])
            cells = [rows_ratio(other, one).text() for other in (plain, top_k)]
            rows.append([str(rows_aimed), f"{runs.value_rows[arm].mean():.0f}", loss_of(runs, arm), *cells])
    columns = (
        "budget",
        "V rows",
        "perplexity against dense",
        "V rows of Top-θ with one k over it",
        "of Top-k with one k",
    )
    return Table("V rows at equal loss", columns, rows)


def rivals(runs: Runs) -> Table:
    """Compare budgets with exact Top-k at the same V rows."""
    rows = []
    for value_rows in COMPARED_ROWS:
        cells = [against(runs, names, value_rows) for names in (EQUAL_TOP_K, EQUAL_THETA)]
        ranks = budget(value_rows, "top-k").name
        own = budget(value_rows).name
        if ranks in runs.losses and own in runs.losses:
            found = runs.value_rows[ranks].mean(), percent(mean_of(runs.losses[own] - runs.losses[ranks]))
            cells.append(f"{found[1].text(sign=True, unit=' %')} at {found[0]:.0f}")
        rows.append([str(value_rows), *(each if isinstance(each, str) else change_text(each) for each in cells)])
    columns = (
        "V rows",
        "against Top-k with one k",
        "against Top-θ with one k",
        "against Top-k with the budget's k, at its V rows",
    )
    return Table("Perplexity of budgets against others at equal V rows", columns, rows)


def probabilities(ours: Runs, theirs: Runs) -> Table:
    """Compare one probability for all heads with budgets and exact Top-k, in the same windows at the same V rows."""
    rows = []
    for arm in TAU.arms:
        if arm.name in ours.losses and arm.method != "dense":
            value_rows = float(ours.value_rows[arm.name].mean())
            others = [difference(ours, arm.name, theirs, names) for names in (BUDGET_ARMS, EQUAL_TOP_K)]
            cells = ["not measured there" if each is None else change_text(each) for each in others]
            share = f"{100 * value_rows / ours.keys:.1f} %"
            rows.append([label(arm), f"{value_rows:.0f}", share, loss_of(ours, arm.name), *cells])
    columns = ("method", "V rows", "of dense", "perplexity against dense", "against budgets at these V rows",
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


def predicted(found: Sequence[Predicted]) -> Table:
    """Tabulate predictions against measurements."""
    rows = [
        [each.text, str(each.target), f"{each.rows[0]:.0f} / {each.rows[1]:.0f}",
         f"{each.error[0]:.4f} / {each.error[1]:.4f}", each.ratio.text()]
        for each in found
    ]  # fmt: skip
    columns = (
        "text",
        "budget",
        "V rows: predicted / measured",
        "error: predicted / measured",
        "predicted over measured",
    )
    return Table("Predicted and measured", columns, rows)


def predicted_by_length(found: Sequence[Predicted]) -> Table:
    """Tabulate predicted over measured errors by length: the least and the most of all budgets."""
    lengths = sorted({each.length for each in found})
    rows = []
    for text in dict.fromkeys(each.text for each in found):
        cells = []
        for length in lengths:
            ratios_at = [each.ratio.value for each in found if (each.text, each.length) == (text, length)]
            cells.append(f"{min(ratios_at):.2f} to {max(ratios_at):.2f}")
        rows.append([text, *cells])
    columns = ("text", *(f"rows of about {length} keys" for length in lengths))
    return Table("Predicted over measured error, all budgets", columns, rows)


def settings_table() -> Table:
    """Tabulate what was fixed before anything was measured."""
    shares = ", ".join(f"{100 * share:g} % of the rows for {what}" for share, what in (
        (THRESHOLD_ROWS, "thresholds"), (CURVE_ROWS, "error curves")))  # fmt: skip
    documents = ", ".join(f"{count} {name}" for name, count in SPLITS.items())
    foreign = ", ".join(f"{count} {name}" for name, count in FOREIGN_SPLITS.items())
    rows = [
        ["documents", f"longer than {LEAST_CHARACTERS:,} characters; a window begins at character {FIRST_CHARACTER:,}"],
        ["prose by split", documents],
        ["jargon and Python by split", foreign],
        ["tokens predicted", f"the last {HEADLINE.positions} of every window"],
        ["thresholds", f"pre-softmax, pooled, k = {', '.join(map(str, KS))}; {shares}"],
        ["one k for all heads", f"{', '.join(map(str, EQUAL_KS))}, at least {FIRST_LAYERS_K} in the first two layers"],
        ["budgets aim at", f"{', '.join(map(str, BUDGETS))} V rows, the mean over all layers"],
        [
            "compensation",
            "exact SDC and VMC; of last-k, pages and BLASST neither, after two layers of Top-k",
        ],
        ["resamples behind a ratio", f"{RESAMPLES:,}"],
    ]
    return Table("Settings", ("", "fixed"), rows)


def all_goals(folder: Path) -> list[Goal]:
    """List all that was asked of the real model, and of what calibration costs it."""
    return [*goals(folder), *cost.goals(folder, MISSING)]


def all_tables(folder: Path) -> dict[str, Table | Paragraphs]:
    """Make everything that the page shows, by its place."""
    runs = runs_of(folder, HEADLINE)
    empty = Table("", (MISSING,), [])
    checked = predictions(folder / prediction_file(HEADLINE), longest=False)
    longest = [each for each in checked if each.length == HEADLINE.length]
    found: dict[str, Table | Paragraphs] = {
        "real says": says(runs),
        "real figures": figure_table(all_goals(folder), figure="figure (95 % bounds)"),
        "real settings": settings_table(),
        "real figure": Paragraphs([f"![perplexity against V rows](results/real_model/{FIGURE})"] if runs else []),
        "real prediction": predicted(longest),
        "real lengths": predicted_by_length(checked),
    }
    shown: dict[str, Table | None] = {
        "real tradeoff": runs and tradeoff(HEADLINE, runs),
        "real ratios": runs and ratios(runs),
        "real rivals": runs and rivals(runs),
    }
    pair = beside(folder, TAU, HEADLINE)
    shown |= {"real tau": pair and probabilities(*pair), "real tau elsewhere": elsewhere(folder)}
    shown |= {"real retrieval": task_tables.retrieval(folder), "real answers": task_tables.answers(folder)}
    shown |= {"real criteria": criteria.table(folder)}
    shown |= {"real cost": cost.passes_table(folder), "real windows": cost.windows_table(folder)}
    for name, part in OTHERS.items():
        other = runs_of(folder, part)
        shown[f"real {name}"] = tradeoff(part, other) if other and len(other.losses) > 1 else None
    return found | {name: table or empty for name, table in shown.items()}
