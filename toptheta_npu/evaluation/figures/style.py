"""Shares what all figures have: curves that can be told apart without colour, panels, and file names."""

from __future__ import annotations

import math
import re
import textwrap
from typing import Any, NamedTuple

from ..._outputs import new_figure

#: Colours that the colour-blind tell apart (Okabe and Ito 2008), with grey for yellow, which white swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
_COLUMNS = 4
#: The part of a figure's width that its title may take.
_TITLE_ROOM = 0.97


class Style(NamedTuple):
    """Say how a curve is drawn; of the first 32, no two share marker and line, nor colour and marker."""

    color: str
    marker: str
    linestyle: str


def style(number: int) -> Style:
    """Give the style of the curve with this number."""
    turn = number // len(COLOURS)
    return Style(
        COLOURS[number % len(COLOURS)],
        MARKERS[(number + 3 * turn) % len(MARKERS)],
        LINES[(number + turn * (len(LINES) - 2)) % len(LINES)],
    )


def grid(count: int, width: float = 3.2, height: float = 3.0, extra: float = 0.8) -> tuple[Any, list[Any]]:
    """Make a figure with ``count`` panels, a few in a row."""
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    size = (max(width * columns + extra, 6.4), height * rows + extra)
    figure, panels = new_figure(rows, columns, size)
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]


def finish(axes: Any, x: str, y: str, title: str = "") -> None:
    """Label the axes, and leave out the frame on the sides that hold no scale."""
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_title(title, loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def headline(figure: Any, text: str) -> None:
    """Write what follows from the figure above its panels, in as many lines as fit into its width."""
    title, width = figure.suptitle(text, fontsize=10), len(text)
    room, renderer = _TITLE_ROOM * figure.bbox.width, figure.canvas.get_renderer()
    while (needed := title.get_window_extent(renderer).width) > room and width > 1:
        width = min(width - 1, int(width * room / needed))
        title.set_text(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False))


def around_zero(axis: Any) -> None:
    """Make a scale linear up to 1 on both sides of 0 and logarithmic beyond, with plain numbers."""
    from matplotlib.ticker import FuncFormatter

    axis.axes.set_yscale("symlog", linthresh=1.0)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend_below(figure: Any, axes: Any) -> None:
    """Put the curves of one panel below all, their lines long enough to be told apart."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False, handlelength=4)


def octaves(axis: Any) -> None:
    """Make a scale logarithmic over whole octaves, with plain numbers at the powers of two."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = (math.log2(end) for end in axis.get_view_interval())
    axis.axes.set(**{f"{axis.axis_name}lim": (2 ** math.floor(low), 2 ** math.ceil(high))})
    axis.set_major_locator(LogLocator(base=2, numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def file_name(*parts: str) -> str:
    """Make a file name of the parts, with nothing in it that a file system minds."""
    words = (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)
    return "_".join(words) + ".png"
