"""``toptheta merge``: the shards of a calibration become its table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..._files import status
from ..._tables import Table
from ...errors import TopThetaValueError
from ..common import printing
from ..common.table_file import check_output

if TYPE_CHECKING:
    from ...calibration.merging import MergedShard


def merge(
    shards: Annotated[list[Path], typer.Argument(metavar="SHARD", help="The files of all shards, in any order.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Write the table here: model.theta.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the table that is there.")] = False,
) -> None:
    """Merge the shards of a calibration into its table of thresholds.

    Shards that are missing, unfinished, there twice or of another calibration are refused by name.
    """
    from ...calibration.merging import merged_files
    from ...thresholds.summary import in_words

    there = status(output, "a file", "--output")
    for shard in shards:
        found = status(shard, "a shard of a calibration")
        if there and found and os.path.samestat(there, found):
            raise TopThetaValueError("--output", "a file of its own", f"the shard {shard}", "name another file")
    check_output(output, force)
    merger = merged_files(shards)
    made = merger.merged().table()
    made.save(output)
    console = printing.console()
    printing.print_table(console, _listed(merger.shards))
    sequences, tokens = (sum(getattr(each, name) for each in merger.shards) for name in ("sequences", "tokens"))
    console.print(f"{output} written, from {sequences} sequences of {tokens} tokens: {in_words(made)}.", markup=False)
    console.print("The files of the shards are not needed any more.")


def _listed(merged: list[MergedShard]) -> Table:
    rows = [
        [f"{each.shard.index} of {each.shard.count}", str(each.sequences), str(each.tokens), each.name]
        for each in merged
    ]
    return Table("", ["shard", "sequences", "tokens", "file"], rows)
