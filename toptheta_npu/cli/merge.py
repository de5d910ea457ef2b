"""``toptheta merge``: the shards of a calibration become its table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import TopThetaValueError
from .table_file import check_output

if TYPE_CHECKING:
    from ..calibration.shards import MergedPart


def merge(
    shards: Annotated[list[Path], typer.Argument(metavar="SHARD", help="The files of all shards, in any order.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Write the table here: model.theta.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the table that is there.")] = False,
) -> None:
    """Merge the shards of a calibration into its table of thresholds.

    Shards that are missing, unfinished, there twice or of another calibration are refused by name.
    """
    from ..calibration.shards import merged_files

    for shard in shards:
        if output.exists() and shard.exists() and output.samefile(shard):
            raise TopThetaValueError("--output", "a file of its own", f"the shard {shard}", "name another file")
    check_output(output, force)
    merger = merged_files(shards)
    table = merger.table()
    table.save(output)
    console = Console(highlight=False)
    console.print(_listed(merger.parts))
    sequences, tokens = sum(part.sequences for part in merger.parts), sum(part.tokens for part in merger.parts)
    console.print(
        f"{escape(str(output))} written, from {sequences} sequences of {tokens} tokens: {escape(repr(table))}",
        soft_wrap=True,
    )
    console.print("The files of the shards are not needed any more.")


def _listed(parts: list[MergedPart]) -> Table:
    listed = Table("shard", "sequences", "tokens", "file", box=None, pad_edge=False)
    for name in ("sequences", "tokens"):
        next(column for column in listed.columns if column.header == name).justify = "right"
    for part in parts:
        numbers = (f"{part.part.index} of {part.part.count}", str(part.sequences), str(part.tokens))
        listed.add_row(*numbers, escape(part.name))
    return listed
