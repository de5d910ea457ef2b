"""Tables that a command prints and a page holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table as RichTable

#: What stands beside the text of a column: padding, and a divider or edge.
_BESIDE = 3
_MARKED = re.compile(r"\A(\*\*|`)(.+)\1\Z")


def counted(number: int, plural: str) -> str:
    """Write how many there are.

    Example:
        >>> counted(2, "samples"), counted(1, "samples")
        ('2 samples', '1 sample')
    """
    return f"{number} {plural.removesuffix('s') if number == 1 else plural}"


@dataclass(frozen=True)
class Table:
    """A table for the terminal and for a page; cells may be Markdown's bold or code.

    Attributes:
        keys: the first so many columns say what a row is of; every part of a folded table has them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    keys: int = 1

    def as_rich(self) -> RichTable:
        table = RichTable(title=self.title, box=SIMPLE_HEAD, title_justify="left", caption=self.caption or None,
                          caption_justify="left", padding=(0, 1))  # fmt: skip
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=number > 0)
        for row in self.rows:
            table.add_row(*(escape(_unmarked(cell)) for cell in row))
        return table

    def folded(self, width: int) -> list[Table]:
        """Fold the table into parts that are as wide as ``width`` allows, each with the columns that say what a row is.

        The first part has the title and the last one the caption.

        Example:
            >>> [part.columns for part in Table("", ("layer", "k = 64", "k = 128"), [("0", "12.5", "25.0")]).folded(20)]
            [['layer', 'k = 64'], ['layer', 'k = 128']]
        """
        widths = [
            max(cell_len(_unmarked(cells[place])) for cells in (self.columns, *self.rows)) + _BESIDE
            for place in range(len(self.columns))
        ]
        keys = range(self.keys)
        room = width - 1 - sum(widths[: self.keys])
        parts: list[list[int]] = [[]]
        for place in range(self.keys, len(self.columns)):
            if parts[-1] and sum(widths[each] for each in parts[-1]) + widths[place] > room:
                parts.append([])
            parts[-1].append(place)
        folded = [self._columns([*keys, *places]) for places in parts]
        folded[0] = replace(folded[0], title=self.title)
        folded[-1] = replace(folded[-1], caption=self.caption)
        return folded

    def _columns(self, places: Sequence[int]) -> Table:
        rows = [[row[place] for place in places] for row in self.rows]
        return Table("", [self.columns[place] for place in places], rows)

    def as_markdown(self) -> str:
        lines = [self.columns, ["---"] + ["---:"] * (len(self.columns) - 1), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _unmarked(cell: str) -> str:
    """Strip Markdown's bold or code from a text."""
    while match := _MARKED.match(cell):
        cell = match[2]
    return cell
