"""Error curves from the shell: measured on windows that made no thresholds, and what their budgets lose and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..._tables import Table
from ..common import printing

#: The work, as its bar names it.
MEASURING = "measuring error curves"
_ROW_FRACTION, _FEWEST_ROWS = 1 / 32, 32

if TYPE_CHECKING:
    from ...thresholds import ThresholdTable


def row_fraction_for(length: int) -> float:
    """Choose the share of the rows of a window to look at: 1/32, and of short windows 32 rows.

    Example:
        >>> row_fraction_for(4096), row_fraction_for(512), row_fraction_for(16)
        (0.03125, 0.0625, 1.0)
    """
    return min(1.0, max(_ROW_FRACTION, _FEWEST_ROWS / length))


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
        "Each has a k for every head; mean k over the heads. error: of what attention adds to the residual stream, "
        "relative to the stream, root of the mean square over layers. V rows: per step and KV head."
    )
    return Table("Budgets", columns, rows, caption)
