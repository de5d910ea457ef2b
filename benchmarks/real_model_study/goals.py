"""What was asked of the real model, and what came in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.real_model_study.analysis import Runs
from benchmarks.real_model_study.comparisons import (
    COMPARED_ARMS,
    EQUAL_TOP_K,
    MISSING,
    Predicted,
    against,
    at_share,
    change_text,
    loss_of,
    prediction_file,
    predictions,
    runs_of,
    saving,
)
from benchmarks.real_model_study.settings import COMPARED_ROWS, HEADLINE, LONGER, SHARES, Arm

#: The text that thresholds come from.
HOME = HEADLINE.text
#: The most that perplexity may rise, in percent, by the share of the V rows.
_LIMITS = {0.09: 0.6, 0.14: 0.35, 0.075: 0.35}


@dataclass(frozen=True)
class Goal:
    """A figure of the study, what was asked of it, and whether it came."""

    name: str
    figure: str
    asked: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Paragraphs:
    """Text in the place of a table."""

    lines: Sequence[str]

    def as_markdown(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def goals(folder: Path) -> list[Goal]:
    """List what was asked of the real model, and what came."""
    runs, longer = runs_of(folder, HEADLINE), runs_of(folder, LONGER)
    return [*_goals_of_rows(runs), *_goals_of_shares(4096, runs), *_goals_of_shares(8192, longer),
            *_goals_of_predictions(predictions(folder / prediction_file(HEADLINE)))]  # fmt: skip


def _goals_of_rows(runs: Runs | None) -> list[Goal]:
    goal = "≥ 1.8, bound ≥ 1.3"
    name = f"V rows of one k over those of budgets ({', '.join(map(str, COMPARED_ROWS))}) at equal loss"
    if runs is None or not set(COMPARED_ARMS) <= set(runs.losses):
        return [Goal(name, MISSING, goal)]
    ratio = saving(runs)
    found = [against(runs, EQUAL_TOP_K, rows) for rows in COMPARED_ROWS]
    rivals_of = [
        Goal(f"budget against exact Top-k with one k, both at {rows} V rows", change_text(each), "< 0",
             None if each is None else each.value < 0)
        for rows, each in zip(COMPARED_ROWS, found, strict=True)
    ]  # fmt: skip
    certain = sum(each is not None and each.high < 0 for each in found)
    last = Goal("of these, better by the 95 % bound", str(certain), "≥ 1", certain >= 1)
    return [Goal(name, ratio.text(), goal, ratio.value >= 1.8 and ratio.low >= 1.3), *rivals_of, last]


def _goals_of_shares(length: int, runs: Runs | None) -> list[Goal]:
    found = []
    for share in SHARES[length]:
        limit = _LIMITS[share]
        loss = None if runs is None else at_share(runs, share)
        met = None if loss is None else loss.value <= limit
        name = f"perplexity, budget of {100 * share:g} % of the V rows, {length} keys"
        found.append(Goal(name, change_text(loss), f"≤ +{limit:g} %", met))
    return found


def _goals_of_predictions(found: Sequence[Predicted]) -> list[Goal]:
    name, goal = "predicted over measured joint error", "0.75 to 1.3"
    by_text: dict[str, list[float]] = {}
    for each in found:
        by_text.setdefault(each.text, []).append(each.ratio.value)
    if HOME not in by_text:
        return [Goal(f"{name}, {HOME}", MISSING, goal)]
    return [
        Goal(f"{name}, {text}", f"{min(values):.2f} to {max(values):.2f}", goal if text == HOME else "",
             (min(values) >= 0.75 and max(values) <= 1.3) if text == HOME else None)
        for text, values in by_text.items()
    ]  # fmt: skip


def says(runs: Runs | None) -> Paragraphs:
    """Say in plain words what the results are, the noes first."""
    if runs is None or not set(COMPARED_ARMS) <= set(runs.losses):
        return Paragraphs(["The study has not been run to its end yet."])
    small, large = (loss_of(runs, Arm("top-theta", k).name) for k in (128, 512))
    lines = [
        f"One k for all heads is not free: at {HEADLINE.length} keys k = 128 changes perplexity by {small}, k = 512 by "
        f"{large}.",
        budgets_say(runs),
        *(_comparison(runs, rows) for rows in COMPARED_ROWS),
        *(f"With {100 * share:g} % of dense attention's V rows a budget changes perplexity by "
          f"{change_text(at_share(runs, share))}." for share in SHARES[HEADLINE.length]),
    ]  # fmt: skip
    return Paragraphs([f"* {line}" for line in lines])


def budgets_say(runs: Runs) -> str:
    """Say how many V rows budgets save."""
    ratio = saving(runs)
    return (
        f"A budget needs {ratio.value:.2f} times fewer V rows than one k for the same loss (95 % bounds "
        f"{ratio.low:.2f} to {ratio.high:.2f})."
    )


def _comparison(runs: Runs, rows: int) -> str:
    found = against(runs, EQUAL_TOP_K, rows)
    if found is None:
        return f"Budgets were not compared with exact Top-k at {rows} V rows."
    verdict = "better than" if found.high < 0 else "worse than" if found.low > 0 else "not told apart from"
    return f"At {rows} V rows a budget is {verdict} exact Top-k with one k: {change_text(found)}."
