"""Tables that benchmarks print for the pages, and the goals of the modelled kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toptheta_npu._tables import Table


def show(*tables: Table) -> None:
    """Print tables as Markdown, as the pages hold them."""
    for table in tables:
        print(f"{table.title}\n\n{table.as_markdown()}", flush=True)


@dataclass(frozen=True)
class Goal:
    """A figure, and the bound that it should keep."""

    name: str
    value: float
    limit: float
    unit: str = ""
    at_most: bool = True

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


def goal_table(goals: Iterable[Goal]) -> Table:
    """Tabulate each figure, its goal, and whether it was met."""
    rows = [
        [goal.name, f"{goal.value:.{2 if goal.unit else 3}f}{goal.unit}",
         f"{'≤' if goal.at_most else '≥'} {goal.limit:g}{goal.unit}", "met" if goal.met else "**missed**"]
        for goal in goals
    ]  # fmt: skip
    return Table("Goals", ("", "figure", "goal", ""), rows)


def rounded(value: Any) -> Any:
    """Round floats to six digits."""
    if isinstance(value, Mapping):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
