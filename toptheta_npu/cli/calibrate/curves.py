"""Error curves from the shell: measured on windows that made no thresholds, and what their budgets lose and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..._tables import Table
from ..common import printing

if TYPE_CHECKING:
    from ...thresholds import ThresholdTable


def show_path(console: Console, table: ThresholdTable) -> None:
    """Print what the measured budgets of ``table`` lose and read."""
    from ...thresholds.summary import path_of

    assert table.curves is not None
    printing.print_table(console, path_table(table.curves.lengths.tolist(), path_of(table)))


def path_table(lengths: Sequence[int], path: Sequence[Mapping[str, Any]]) -> Table:
    """Make the table of budgets, from the cheapest on."""
    rows = [
        [f"{budget['mean_k']:.0f}", *(cell for pair in zip(budget["error"], budget["value_rows"], strict=True)
                                     for cell in (f"{pair[0]:.4f}", f"{pair[1]:.0f}"))]
        for budget in path
    ]  # fmt: skip
    columns = ("mean k", *(name for length in lengths for name in (f"n={length}: error", "V rows")))
    caption = (
        "Measured budgets, each with a k for every head; mean k over heads. error: of what attention adds to the "
        "residual stream, relative to the stream, root of the mean square over layers; V rows: per step and KV head."
    )
    return Table("", columns, rows, caption)
