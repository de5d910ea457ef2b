"""All that the pages show of the modelled kernel: modelled and uncalibrated, never a latency of a device.

    python -m benchmarks.modelled.pages [--stored] [--write]

Prints the tables of docs/kernel.md and docs/performance.md. With --write it also renews what the tests hold the kernel
against, docs/results/modelled_kernel.json. Each shape runs with exactly k kept per head (the threshold lies between the
k-th and the next score) and at theta = -inf, which is the same kernel as dense attention.
"""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.tables import show

from . import tables
from .figures import collect, load, save

COMMAND = "python -m benchmarks.modelled.pages --write"


def main(
    stored: Annotated[bool, typer.Option("--stored", help="Model nothing; print what is stored.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Renew the stored figures.")] = False,
) -> None:
    """Model the kernel on all calls of the pages."""
    if stored and write:
        raise typer.BadParameter("expected one of --stored and --write, got both", param_hint="--stored")
    figures = load() if stored else collect()
    if write:
        save(figures)
    print("Every time is modelled and uncalibrated, in microseconds; none is a device's.\n")
    show(*tables.tables_of(figures))


if __name__ == "__main__":
    typer.run(main)
