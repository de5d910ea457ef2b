"""Tables that a command prints and a page holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """A table for the terminal and for a page; cells may be Markdown's bold or code."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def as_rich(self) -> RichTable:
        table = RichTable(title=self.title, box=SIMPLE_HEAD, title_justify="left", caption=self.caption or None,
                          caption_justify="left", padding=(0, 1))  # fmt: skip
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=number > 0)
        for row in self.rows:
            table.add_row(*(cell.strip("*`") for cell in row))
        return table

    def as_markdown(self) -> str:
        lines = [self.columns, ["---"] + ["---:"] * (len(self.columns) - 1), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
