"""Models the kernel on all calls that the pages tell of: modelled and uncalibrated, never a latency of a device.

    python -m benchmarks.modelled.pages [--write]

Prints the tables, of which docs/kernel.md shows the rows that decide something. With --write it also renews the table
of docs/performance.md, the figures behind all of them in docs/results/modelled_kernel.json, and the picture of the
timeline; `python -m benchmarks.goals_page` then renews docs/goals.md. Each shape runs with exactly k kept per head (the
threshold lies between the k-th and the next score) and at theta = -inf, which is the same kernel as dense attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.tables import Table, renew

from . import tables
from .figures import FILE, Figures, collect, load, save
from .timeline import plot_timeline

_ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python -m benchmarks.modelled.pages --write"


def page_tables(figures: Figures) -> Mapping[Path, Mapping[str, Table]]:
    """Make the tables of each page, by the names of their places there."""
    return {_ROOT / "docs" / "performance.md": tables.performance_tables(figures)}


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew the pages, their figures and the picture.")] = False,
) -> None:
    """Model the kernel on all calls of the pages."""
    console = Console(width=max(Console().width, 120))
    figures, traces = collect()
    if write:
        save(figures)
        plot_timeline(traces, FILE.with_name("modelled_timeline.png"))
        figures = load()
    console.print("Every time is modelled and uncalibrated, in microseconds; none is a device's.")
    for table in tables.kernel_tables(figures).values():
        console.print(table.as_rich())
    for page, own in page_tables(figures).items():
        for table in own.values():
            console.print(table.as_rich())
        if write:
            renew(page, own)
            console.print(f"{page.relative_to(_ROOT)} renewed")


if __name__ == "__main__":
    typer.run(main)
