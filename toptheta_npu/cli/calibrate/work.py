"""The work of ``toptheta calibrate``: interrupted and resumed, or in shards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..._files import check_writable
from ...calibration.shard import OWN_STATE, Shard
from ...errors import TopThetaValueError, shown
from ..common.table_file import check_output


def parse_shard(text: str) -> Shard:
    """Read the shard that a text such as "0/4" names.

    Raises:
        TopThetaValueError: no such shard.

    Example:
        >>> parse_shard("0/4")
        Shard(index=0, count=4)
    """
    pair = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    if pair is None or int(pair[1]) >= int(pair[2]):
        raise TopThetaValueError("--shards", "INDEX/COUNT, with INDEX from 0 to COUNT - 1", shown(text), "such as 0/4")
    return Shard(int(pair[1]), int(pair[2]))


def shard_file(output: Path, shard: Shard) -> Path:
    """Name the file for a shard of the calibration of ``output``; its state is there too.

    Example:
        >>> str(shard_file(Path("model.theta"), Shard(0, 4)))
        'model.theta.shard-0-of-4'
    """
    return output.with_name(f"{output.name}.shard-{shard.index}-of-{shard.count}")


def state_file(output: Path) -> Path:
    """Name the file for the state of the calibration of ``output``."""
    return output.with_name(f"{output.name}.partial")


@contextmanager
def resumable(state: Path) -> Iterator[None]:
    """Say of what is wrong with the file of a state that ``--restart`` mends it."""
    try:
        yield
    except TopThetaValueError as error:
        # an error of the disk is not mended so
        if error.argument != str(state) or isinstance(error.__cause__, OSError):
            raise
        remedy = "add --restart to replace it and begin anew, or name another output with -o"
        if error.expected == OWN_STATE:
            remedy = f"give the options and texts that it was made with, {remedy}"
        raise TopThetaValueError(error.argument, error.expected, error.got, remedy) from error


def checked_shard(output: Path, force: bool, shards: str | None) -> Shard | None:
    """Check where the work goes, and which shard of it this is; None: all of it."""
    if shards is None:
        check_output(output, force)
        # a longer name than that of the table may be too long
        check_writable(state_file(output), "--output")
        return None
    shard = parse_shard(shards)
    check_writable(shard_file(output, shard), "--output")
    return shard


def begin(restart: bool, state: Path, console: Console) -> None:
    """Go back to the start where that is wished; else say that the work goes on from a state that is there."""
    if restart:
        state.unlink(missing_ok=True)
    elif state.exists():
        console.print(f"note: going on from {escape(str(state))}; --restart begins anew.")


def own_windows(windows: int, shard: Shard | None) -> int:
    """Tell how many of the windows are run here."""
    return windows if shard is None else len(shard.places(windows))
