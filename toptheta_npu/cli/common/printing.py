"""Tables and sentences as wide as the terminal; where there is none, sentences are not broken into lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement

from ..._tables import Table

_WIDEST = 10_000
#: Columns that a table has at most in a pipe or file, which have no width of their own.
_WITHOUT_TERMINAL = 100


def console(width: int | None = None) -> Console:
    """Make a console that leaves lines whole: a terminal wraps long ones itself, and programs want them whole."""
    return Console(highlight=False, soft_wrap=True, width=width)


def print_table(target: Console, table: Table) -> None:
    """Print title, table and caption; of a table that is wider than the terminal one part below the other."""
    # whoever names a width means it
    width = target.width if target.is_terminal or "COLUMNS" in os.environ else _WITHOUT_TERMINAL
    if table.title:
        target.print(escape(table.title), soft_wrap=True)
    for part in table.folded(width):
        shown = replace(part, title="", caption="").as_rich()
        # rich would cut off a column that is still wider
        shown.width = Measurement.get(target, target.options.update_width(_WIDEST), shown).maximum
        target.print(shown, soft_wrap=True)
    if table.caption:
        target.print(escape(table.caption), soft_wrap=False, width=width)


def layers_in_words(layers: Sequence[int]) -> str:
    """List layers by ranges.

    Example:
        >>> layers_in_words([0, 1, 2, 7])
        'layers 0 to 2, 7'
    """
    runs = [[layer for _, layer in run] for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0])]
    names = (str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"layer{'s' * (len(layers) > 1)} {', '.join(names)}"
