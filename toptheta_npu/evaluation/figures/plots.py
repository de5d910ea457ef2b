"""Draws the figures of an evaluation from its files of results. It needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..._outputs import Drawing, require_matplotlib, save_figures
from ...errors import TopThetaValueError
from ..measurement import Measurement
from ..results import Point
from ..summary import has_finite_score
from .reads import draw_traffic
from .scores import draw_prompts, draw_tradeoff
from .style import Measured


def save_plots(points: Mapping[Point, Measurement], k: int | None, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw what the points allow, each figure as PNG and SVG with its data as CSV.

    Args:
        points: of one file.
        k: of the figures that show one k; None: the middle one of each task.
        folder: where the files go.

    Returns:
        The files, and a sentence for each figure that the points do not allow.

    Raises:
        TopThetaValueError: there is no such k, or a file cannot be written.
    """
    require_matplotlib()
    if not points:
        raise TopThetaValueError("FILE", "at least one finished point", "none", "let toptheta evaluate finish one")
    known = sorted({point.k for point in points if point.k is not None})
    if k is not None and k not in known:
        raise TopThetaValueError("--k", f"one of {', '.join(map(str, known)) or 'none'}, which were measured", str(k))
    finite = {point: measurement for point, measurement in points.items() if has_finite_score(measurement)}
    files, left_out = save_figures(folder, _drawings(finite, k))
    return files, [
        *(f"{point.name} not drawn: its score is not finite." for point in points if point not in finite),
        *left_out,
    ]


def _drawings(points: Mapping[Point, Measurement], k: int | None) -> Iterator[Drawing]:
    for task in dict.fromkeys(point.task for point in points):
        of_task = [(point, measurement) for point, measurement in points.items() if point.task == task]
        shown = _shown_k(of_task) if k is None else k
        yield draw_tradeoff(task, of_task)
        yield draw_prompts(task, of_task, shown)
        yield draw_traffic(task, of_task, shown)


def _shown_k(points: Sequence[Measured]) -> int | None:
    known = sorted({point.k for point, _ in points if point.k is not None})
    return known[(len(known) - 1) // 2] if known else None
