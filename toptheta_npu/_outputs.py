"""Files that a command writes: tried before the work that fills them, and written whole after it."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

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


class Drawing(NamedTuple):
    """A plot for a folder: its file, its figure or None where there is nothing to draw, and what it would need."""

    file: str
    figure: Any
    needs: str


def save_figures(folder: Path, drawings: Iterable[Drawing]) -> tuple[list[Path], list[str]]:
    """Write matplotlib figures into a folder and close them, one after the other.

    Returns:
        The files, and a sentence for each plot that could not be drawn.

    Raises:
        TopThetaValueError: a file cannot be written.
    """
    from matplotlib import pyplot

    files, left_out = [], []
    for file, figure, needs in drawings:
        if figure is None:
            left_out.append(f"{file} not drawn: it needs {needs}.")
            continue
        files.append(folder / file)
        save_figure(files[-1], figure)
        pyplot.close(figure)
    return files, left_out
