"""The tables of docs/real-model.md, and what it says first, from the results that are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.real_model_study import results
from benchmarks.real_model_study.analysis import Bounded, Runs, bootstrap, mean_of, percent, rows_ratio
from benchmarks.real_model_study.settings import (
    BUDGETS,
    COMPARED_ROWS,
    EQUAL_KS,
    HEADLINE,
    SHARES,
    Arm,
    Part,
    budget,
    equal,
)
from toptheta_npu._tables import Table

#: The text that thresholds come from.
HOME = HEADLINE.text
_MISSING = "not measured yet"

EQUAL_THETA = tuple(arm.name for arm in equal(EQUAL_KS) if arm.method == "top-theta")
EQUAL_TOP_K = tuple(arm.name for arm in equal(EQUAL_KS) if arm.method == "top-k")
BUDGET_ARMS = tuple(budget(rows).name for rows in BUDGETS)
COMPARED_ARMS = tuple(budget(rows).name for rows in COMPARED_ROWS)


@dataclass(frozen=True)
class Goal:
    """A figure of the study, what was asked of it, and whether it came."""

    name: str
    figure: str
    goal: str = ""
    met: bool | None = None

    @property
    def cells(self) -> list[str]:
        verdict = "" if self.met is None else "met" if self.met else "**missed**"
        return [self.name, self.figure, self.goal, verdict]


@dataclass(frozen=True)
class Paragraphs:
    """Text in the place of a table."""

    lines: Sequence[str]

    def as_markdown(self) -> str:
        return "".join(f"* {line}\n" for line in self.lines)


def label(arm: Arm) -> str:
    """Name an arm for people.

    Example:
        >>> label(Arm("top-theta", 64)), label(budget(350, "top-k"))
        ('Top-θ, k = 64', 'Top-k, k of the budget of 350 V rows')
    """
    name, _, options = arm.method.partition(":")
    title = {"top-theta": "Top-θ", "top-k": "Top-k", "blasst": "BLASST", "pages": "pages (Quest)"}.get(name, name)
    target = options.removeprefix("target_value_rows=")
    if target != options:
        return f"{title}, {'budget' if name == 'top-theta' else 'k of the budget'} of {target} V rows"
    if arm.like:
        return f"{title}, bytes of {label(Arm(arm.like))}"
    extra = f", {options.replace(',', ', ')}" if options else ""
    return title + (f", k = {arm.k}" if arm.k else "") + extra


def runs_of(folder: Path, part: Part) -> Runs | None:
    """Read what a part has so far; None without dense attention in any window."""
    _, lines = results.read(folder / f"{part.name}.jsonl")
    found = Runs.of(lines, [arm.name for arm in part.arms]) if any(line["arm"] == "dense" for line in lines) else None
    return found if found is not None and len(found.dense) else None


def tradeoff(part: Part, runs: Runs) -> Table:
    """Tabulate the loss of every arm and what it reads."""
    rows = []
    for arm in part.arms:
        if arm.name not in runs.losses:
            continue
        lines, value_rows = runs.lines[arm.name], float(runs.value_rows[arm.name].mean())
        key_rows = float(np.mean([line["key_rows"] for line in lines]))
        loss = "" if arm.method == "dense" else percent(mean_of(runs.losses[arm.name])).text(sign=True, unit=" %")
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
            loss = percent(mean_of(runs.losses[arm])).text(sign=True, unit=" %")
            cells = [rows_ratio(other, one).text() for other in (plain, top_k)]
            rows.append([str(rows_aimed), f"{runs.value_rows[arm].mean():.0f}", loss, *cells])
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
        cells = [_against(runs, names, value_rows) for names in (EQUAL_TOP_K, EQUAL_THETA)]
        ranks = budget(value_rows, "top-k").name
        own = budget(value_rows).name
        if ranks in runs.losses and own in runs.losses:
            found = runs.value_rows[ranks].mean(), percent(mean_of(runs.losses[own] - runs.losses[ranks]))
            cells.append(f"{found[1].text(sign=True, unit=' %')} at {found[0]:.0f}")
        rows.append([str(value_rows), *(each if isinstance(each, str) else _text(each) for each in cells)])
    columns = (
        "V rows",
        "against Top-k with one k",
        "against Top-θ with one k",
        "against Top-k with the budget's k, at its V rows",
    )
    return Table("Perplexity of budgets against others at equal V rows", columns, rows)


def _against(runs: Runs, names: Sequence[str], value_rows: float) -> Bounded | None:
    """Compare budgets with other arms at the same V rows, in percent; None where either was not measured there."""
    curves = [runs.curve(each) for each in (BUDGET_ARMS, names)]
    if not all(curve.reaches(value_rows) for curve in curves):
        return None
    ours, theirs = (curve.at(value_rows) for curve in curves)
    return percent(mean_of(ours - theirs))


def _at_share(runs: Runs, share: float) -> Bounded | None:
    """Give the loss of budgets at a share of the V rows of dense attention, in percent."""
    curve = runs.curve(BUDGET_ARMS)
    return percent(mean_of(curve.at(share * runs.keys))) if curve.reaches(share * runs.keys) else None


def _text(found: Bounded | None) -> str:
    return _MISSING if found is None else found.text(sign=True, unit=" %")


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


def prediction_file(part: Part) -> str:
    """Name the file of predictions for the length of a part."""
    return f"prediction_{part.length}.jsonl"


def goals(folder: Path) -> list[Goal]:
    """List what was asked of the real model, and what came."""
    runs, longer = runs_of(folder, HEADLINE), runs_of(folder, _at(8192))
    return [*_goals_of_rows(runs), *_goals_of_shares(4096, runs), *_goals_of_shares(8192, longer),
            *_goals_of_predictions(predictions(folder / prediction_file(HEADLINE)))]  # fmt: skip


def _at(length: int) -> Part:
    return Part(HOME, length, 0, (Arm("dense"), *map(budget, BUDGETS)))


def _goals_of_rows(runs: Runs | None) -> list[Goal]:
    goal = "≥ 1.8, bound ≥ 1.3"
    name = f"V rows of one k over those of budgets ({', '.join(map(str, COMPARED_ROWS))}) at equal loss"
    if runs is None or not set(COMPARED_ARMS) <= set(runs.losses):
        return [Goal(name, _MISSING, goal)]
    ratio = rows_ratio(runs.curve(EQUAL_THETA), runs.curve(COMPARED_ARMS))
    found = [_against(runs, EQUAL_TOP_K, rows) for rows in COMPARED_ROWS]
    rivals_of = [
        Goal(f"budget against exact Top-k with one k, both at {rows} V rows", _text(each), "< 0",
             None if each is None else each.value < 0)
        for rows, each in zip(COMPARED_ROWS, found, strict=True)
    ]  # fmt: skip
    certain = sum(each is not None and each.high < 0 for each in found)
    last = Goal("of these, better by the 95 % bound", str(certain), "≥ 1", certain >= 1)
    return [Goal(name, ratio.text(), goal, ratio.value >= 1.8 and ratio.low >= 1.3), *rivals_of, last]


_LIMITS = {0.09: 0.6, 0.14: 0.35, 0.075: 0.35}


def _goals_of_shares(length: int, runs: Runs | None) -> list[Goal]:
    found = []
    for share in SHARES[length]:
        limit = _LIMITS[share]
        loss = None if runs is None else _at_share(runs, share)
        met = None if loss is None else loss.value <= limit
        name = f"perplexity, budget of {100 * share:g} % of the V rows, {length} keys"
        found.append(Goal(name, _text(loss), f"≤ +{limit:g} %", met))
    return found


def _goals_of_predictions(found: Sequence[Predicted]) -> list[Goal]:
    name, goal = "predicted over measured joint error", "0.75 to 1.3"
    by_text: dict[str, list[float]] = {}
    for each in found:
        by_text.setdefault(each.text, []).append(each.ratio.value)
    if HOME not in by_text:
        return [Goal(f"{name}, {HOME}", _MISSING, goal)]
    return [
        Goal(f"{name}, {text}", f"{min(values):.2f} to {max(values):.2f}", goal if text == HOME else "",
             (min(values) >= 0.75 and max(values) <= 1.3) if text == HOME else None)
        for text, values in by_text.items()
    ]  # fmt: skip


def goal_table(found: Sequence[Goal]) -> Table:
    """Tabulate the goals."""
    return Table("Goals", ("", "figure (95 % bounds)", "goal", ""), [each.cells for each in found])


def says(runs: Runs | None, found: Sequence[Goal]) -> Paragraphs:
    """Say in plain words what the results are, the noes first."""
    if runs is None or not set(COMPARED_ARMS) <= set(runs.losses):
        return Paragraphs(["The study has not been run to its end yet."])
    missed = [goal for goal in found if goal.met is False]
    ratio = rows_ratio(runs.curve(EQUAL_THETA), runs.curve(COMPARED_ARMS))
    small, large = (_loss(runs, Arm("top-theta", k)) for k in (128, 512))
    lines = [
        f"**Of the goals below, {len(missed) or 'none'} {'is' if len(missed) < 2 else 'are'} missed.**",
        f"One k for all heads is not free: at {HEADLINE.length} keys k = 128 changes perplexity by {small}, k = 512 by "
        f"{large}.",
        f"A budget needs {ratio.value:.2f} times fewer V rows for the same loss (95 % bounds {ratio.low:.2f} to "
        f"{ratio.high:.2f}).",
        *(_comparison(runs, rows) for rows in COMPARED_ROWS),
        *(f"With {100 * share:g} % of the V rows of dense attention a budget costs {_text(_at_share(runs, share))}."
          for share in SHARES[HEADLINE.length]),
    ]  # fmt: skip
    return Paragraphs(lines)


def _loss(runs: Runs, arm: Arm) -> str:
    return percent(mean_of(runs.losses[arm.name])).text(sign=True, unit=" %")


def _comparison(runs: Runs, rows: int) -> str:
    found = _against(runs, EQUAL_TOP_K, rows)
    if found is None:
        return f"Budgets were not compared with exact Top-k at {rows} V rows."
    verdict = "better than" if found.high < 0 else "worse than" if found.low > 0 else "not told apart from"
    return f"At {rows} V rows a budget is {verdict} exact Top-k with one k: {_text(found)}."


def all_tables(folder: Path) -> dict[str, Table | Paragraphs]:
    """Make everything that the page shows, by its place."""
    runs, asked = runs_of(folder, HEADLINE), goals(folder)
    empty = Table("", (_MISSING,), [])
    found: dict[str, Table | Paragraphs] = {
        "real says": says(runs, asked),
        "real goals": goal_table(asked),
        "real prediction": predicted(predictions(folder / prediction_file(HEADLINE))),
    }
    shown: Mapping[str, Table | None] = {
        "real tradeoff": runs and tradeoff(HEADLINE, runs),
        "real ratios": runs and ratios(runs),
        "real rivals": runs and rivals(runs),
    }
    return found | {name: table or empty for name, table in shown.items()}
