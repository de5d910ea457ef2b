"""What came of the real model, in words and in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.real_model_study.analysis import Bounded, Runs, mean_of, percent
from benchmarks.real_model_study.comparisons import (
    EQUAL_TOP_K,
    MISSING,
    TAU_ARMS,
    beside,
    change_text,
    difference,
    loss_of,
    tail,
)
from benchmarks.real_model_study.settings import HEADLINE, TAU, Arm

#: Shares of dense attention's V rows at which the loss is named, and the most that was asked of it, in percent.
_LIMITS = {0.06: 0.5, 0.09: 0.25, 0.135: 0.1}
#: The arms that are named in words.
_NAMED = (Arm("tau:tau=0.0005").name, Arm("tau:tau=0.00015").name)
_THETA = Arm("top-theta", 128).name


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
    pair = beside(folder, TAU, HEADLINE)
    losses = [_goal_at(pair[0] if pair else None, share, limit) for share, limit in _LIMITS.items()]
    name = f"p95 over mean of the V rows of a row and KV head, {_NAMED[0].removeprefix('tau:')}"
    if pair is None:
        return [*losses, Goal(name, MISSING, "≤ 2.0")]
    shares, ks = pair
    against = [
        Goal(f"{arm.removeprefix('tau:')} against exact Top-k with one k, at equal V rows", change_text(found),
             "< 0, bound excludes 0", found.high < 0)
        for arm in TAU_ARMS
        if arm in shares.losses and (found := difference(shares, arm, ks, EQUAL_TOP_K)) is not None
    ]  # fmt: skip
    ratio = tail(shares, _NAMED[0]) if _NAMED[0] in shares.losses else ""
    return [*losses, *against, Goal(name, ratio or MISSING, "≤ 2.0", float(ratio) <= 2.0 if ratio else None)]


def _goal_at(runs: Runs | None, share: float, limit: float) -> Goal:
    loss = None if runs is None else _at_share(runs, share)
    name = f"perplexity, one probability, {100 * share:g} % of the V rows, {HEADLINE.length} keys"
    return Goal(name, change_text(loss), f"≤ +{limit:g} %", None if loss is None else loss.value <= limit)


def _at_share(runs: Runs, share: float) -> Bounded | None:
    """Give the loss of one probability at a share of the V rows of dense attention, in percent."""
    curve = runs.curve(TAU_ARMS)
    return percent(mean_of(curve.at(share * runs.keys))) if curve.reaches(share * runs.keys) else None


def says(folder: Path) -> Paragraphs:
    """Say in plain words what the results are, the noes among them."""
    pair = beside(folder, TAU, HEADLINE)
    if pair is None or not set(_NAMED) <= set(pair[0].losses):
        return Paragraphs(["The study has not been run to its end yet."])
    shares, ks = pair
    lines = [
        *(_line(shares, ks, arm) for arm in _NAMED),
        f"Thresholds of scores, calibrated for every head, lose more: with k = 128, {_rows(ks, _THETA)} of the V rows "
        f"and {loss_of(ks, _THETA)}.",
    ]  # fmt: skip
    return Paragraphs([f"* {line}" for line in lines])


def _rows(runs: Runs, arm: str) -> str:
    return f"{100 * float(runs.value_rows[arm].mean()) / runs.keys:.1f} %"


def _line(shares: Runs, ks: Runs, arm: str) -> str:
    found = difference(shares, arm, ks, EQUAL_TOP_K)
    text = (
        f"`{arm.removeprefix('tau:')}`, one share of the attention for all heads, without calibration: with "
        f"{_rows(shares, arm)} of dense attention's V rows perplexity changes by {loss_of(shares, arm)}"
    )
    if found is None:
        return f"{text}."
    verdict = "better than" if found.high < 0 else "worse than" if found.low > 0 else "not told apart from"
    return f"{text}; this is {verdict} exact Top-k with one k at as many V rows, {change_text(found)}."
