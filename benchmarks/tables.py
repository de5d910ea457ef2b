"""Tables of the documentation and the goals in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from toptheta_npu._tables import Table


class Judged(Protocol):
    """A figure, what was asked of it ("" if nothing was), and whether it came (None if it is not known)."""

    @property
    def name(self) -> str: ...

    @property
    def figure(self) -> str: ...

    @property
    def asked(self) -> str: ...

    @property
    def met(self) -> bool | None: ...


@dataclass(frozen=True)
class Goal:
    """A figure with its standard error, if it has one, and the bound that it should keep, if there is one."""

    name: str
    value: float
    limit: float | None = None
    unit: str = ""
    at_most: bool = True
    error: float | None = None

    @property
    def digits(self) -> int:
        if isinstance(self.value, int):
            return 0
        return 2 if self.unit else 3

    @property
    def figure(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.{self.digits}f}"
        return f"{self.value:.{self.digits}f}{error}{self.unit}"

    @property
    def asked(self) -> str:
        return "" if self.limit is None else f"{'≤' if self.at_most else '≥'} {self.limit:g}{self.unit}"

    @property
    def met(self) -> bool:
        if self.limit is None:
            return True
        return self.value <= self.limit if self.at_most else self.value >= self.limit


def goal_table(goals: Iterable[Judged], *, title: str = "Goals", figure: str = "figure") -> Table:
    """Tabulate each figure, its goal, and whether it was met: for contributors."""
    verdicts = {None: "", True: "met", False: "**missed**"}
    rows = [[goal.name, goal.figure, goal.asked, verdicts[goal.met] if goal.asked else ""] for goal in goals]
    return Table(title, ("", figure, "goal", ""), rows)


def figure_table(figures: Iterable[Judged], *, title: str = "Figures", figure: str = "figure") -> Table:
    """Tabulate each figure alone: for users."""
    return Table(title, ("", figure), [[each.name, each.figure] for each in figures])


def renew(page: Path, tables: Mapping[str, Table]) -> None:
    """Put the tables into a page, between the comments that carry their names.

    Raises:
        ValueError: the page has no place for a table, or several.
    """
    text = page.read_text()
    for name, table in tables.items():
        place = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = place.subn(lambda match, table=table: match[1] + table.as_markdown() + match[2], text)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{page}: expected one place for the table {name}, got {count}")
    page.write_text(text)


def rounded(value: Any) -> Any:
    """Round floats to six digits."""
    if isinstance(value, Mapping):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
