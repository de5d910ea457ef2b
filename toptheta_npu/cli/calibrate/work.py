"""The work of ``toptheta calibrate``: interrupted and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..._files import check_writable
from ...calibration.state import OWN_STATE
from ...errors import TopThetaValueError
from ..common.table_file import check_output


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
            remedy = f"give the model, options and texts that it was made with, {remedy}"
        raise TopThetaValueError(error.argument, error.expected, error.got, remedy) from error


def check_outputs(output: Path, force: bool) -> None:
    """Check where the table and the state of its calibration go."""
    check_output(output, force)
    # a longer name than that of the table may be too long
    check_writable(state_file(output), "--output")


def begin(restart: bool, state: Path, console: Console) -> None:
    """Go back to the start where that is wished; else say that the work goes on from a state that is there."""
    if restart:
        state.unlink(missing_ok=True)
    elif state.exists():
        console.print(f"note: going on from {escape(str(state))}; --restart begins anew.")
