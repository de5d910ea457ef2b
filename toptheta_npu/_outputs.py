"""Files that a command writes: tried before the work that fills them, and written whole after it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
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


def require_matplotlib() -> None:
    """Raise ModuleNotFoundError where matplotlib is missing, before the work whose figures it draws."""
    import matplotlib  # noqa: F401


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """Make a matplotlib figure for files alone, with the panels of its rows one after the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save_figure(path: Path, figure: Any) -> None:
    """Write a matplotlib figure, whole or not at all: as SVG or PNG, as the name ends; the same figure, the same file.

    Raises:
        TopThetaValueError: it cannot be written.
    """
    from matplotlib import rc_context

    picture = io.BytesIO()
    if path.suffix == ".svg":
        with rc_context({"svg.hashsalt": path.stem}):
            figure.savefig(picture, format="svg", metadata={"Date": None})
    else:
        figure.savefig(picture, format="png", dpi=120)
    write_atomically(path, picture.getvalue())


class Drawing(NamedTuple):
    """A plot for a folder: its file, its figure or None where there is nothing to draw, and what it would need.

    With ``data``, a head and rows, it comes as PNG, as SVG and as CSV.
    """

    file: str
    figure: Any
    needs: str
    data: Sequence[Sequence[object]] = ()

    @property
    def files(self) -> list[str]:
        """The names of all its files."""
        stem = self.file.removesuffix(".png")
        return [self.file, *(f"{stem}.{kind}" for kind in ("svg", "csv") if self.data)]


def save_figures(folder: Path, drawings: Iterable[Drawing]) -> tuple[list[Path], list[str]]:
    """Write matplotlib figures into a folder, one after the other.

    Returns:
        The files, and a sentence for each plot that could not be drawn.

    Raises:
        TopThetaValueError: a file cannot be written.
    """
    files, left_out = [], []
    for drawing in drawings:
        if drawing.figure is None:
            left_out.append(f"{drawing.file} not drawn: it needs {drawing.needs}.")
            continue
        for file in drawing.files:
            files.append(folder / file)
            if file.endswith(".csv"):
                write_atomically(files[-1], _as_csv(drawing.data))
            else:
                save_figure(files[-1], drawing.figure)
    return files, left_out


def _as_csv(data: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(data)
    return text.getvalue()
