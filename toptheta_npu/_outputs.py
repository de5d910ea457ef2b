"""Files that a command writes: tried before the work that fills them, and written whole after it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ._files import check_writable, write_atomically
from .errors import TopThetaValueError


def check_output_folder(option: str, folder: Path, *names: str) -> None:
    """Make a folder where there is none, and try whether the files ``names`` can be written into it.

    Raises:
        TopThetaValueError: the folder cannot be made, or a file in it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        got = f"{folder} ({cause.strerror or cause})"
        raise TopThetaValueError(option, "a folder that can be made", got, "name another place") from cause
    for name in names:
        check_writable(folder / name, option)


def save_figure(path: Path, figure: Any) -> None:
    """Write a matplotlib figure as PNG, whole or not at all.

    Raises:
        TopThetaValueError: it cannot be written.
    """
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomically(path, picture.getvalue())
