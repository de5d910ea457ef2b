"""Draws the figure of an evaluation's tasks from its file of results. It needs the extra ``plot``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ..._outputs import Drawing, require_matplotlib, save_figures
from ..._tables import counted
from ...errors import TopThetaValueError
from ..measurement import Measurement
from ..results import Point
from ..summary import Change, change, has_finite_score, key_value_share, score, score_name
from .style import around_zero, file_name, finish, grid, headline, legend_below, octaves, style

Measured = tuple[Point, Measurement]
#: Changes beyond so many percent or points are drawn on a scale that is logarithmic, but up to 1.
_WIDE = 20.0
_SHARES = ("elements kept", "V rows read", "K and V rows read")


class _Place(NamedTuple):
    """A point of a trade-off; the shares are percent of dense attention, as `_SHARES`."""

    point: Point
    name: str
    change: Change
    shares: tuple[float | None, ...]


def save_plots(points: Mapping[Point, Measurement], folder: Path) -> tuple[list[Path], list[str]]:
    """Draw what each task loses against what is read, as PNG and SVG with the data as CSV.

    Args:
        points: of one file.
        folder: where the files go.

    Returns:
        The files, and a sentence for each figure that the points do not allow.

    Raises:
        TopThetaValueError: there are no points, or a file cannot be written.
    """
    require_matplotlib()
    if not points:
        raise TopThetaValueError("FILE", "at least one finished point", "none", "let toptheta evaluate finish one")
    finite = {point: measurement for point, measurement in points.items() if has_finite_score(measurement)}
    files, left_out = save_figures(folder, _drawings(finite))
    return files, [
        *(f"{point.name} not drawn: its score is not finite." for point in points if point not in finite),
        *left_out,
    ]


def _drawings(points: Mapping[Point, Measurement]) -> Iterator[Drawing]:
    for task in dict.fromkeys(point.task for point in points):
        yield draw_tradeoff(task, [pair for pair in points.items() if pair[0].task == task])


def draw_tradeoff(task: str, points: Sequence[Measured]) -> Drawing:
    """Draw the change of score against the share of elements, V rows, and K and V rows, one curve per method."""
    file, needs = file_name("tradeoff", task), f"the dense point and another one of {task}"
    dense = next((measurement for point, measurement in points if point.method == "dense"), None)
    others = [pair for pair in points if pair[1] is not dense]
    if dense is None or not others:
        return Drawing(file, None, needs)
    places = [_place(point, curve_name(point, others), found, dense) for point, found in others]
    places.sort(key=lambda place: place.point.k or 0)
    figure, panels = grid(3, width=4.0, height=4.6)
    for number, (axes, what) in enumerate(zip(panels, _SHARES, strict=True)):
        for index, name in enumerate(dict.fromkeys(curve_name(point, others) for point, _ in others)):
            _draw_curve(axes, [place for place in places if place.name == name], number, index)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.margins(y=0.1)
        if max(abs(place.change.value) for place in places) > _WIDE:
            around_zero(axes.yaxis)
        octaves(axes.xaxis)
        finish(axes, f"{what}, % of dense attention (layers ≥ 2)", "" if number else _change_label(dense, places))
    legend_below(figure, panels[1])
    headline(figure, f"{task}: {counted(len(dense.scores), 'samples')}")
    return Drawing(file, figure, needs, _data(places, dense))


def curve_name(point: Point, points: Sequence[Measured]) -> str:
    """Name a point's curve: its label, and what tells it from others of that label, such as its thresholds."""
    alike = [other for other, _ in points if other.label == point.label]
    # of the first layers the k depends on that of the others
    at_k = [other for other in alike if other.k == point.k]
    for name, compared in (("table", alike), ("first_layers", at_k)):
        found = getattr(point, name)
        if found and len({getattr(other, name) for other in compared}) > 1:
            return f"{point.label} ({found})"
    return point.label


def _place(point: Point, name: str, found: Measurement, dense: Measurement) -> _Place:
    reads, both = found.reads, key_value_share(found)
    kept, value_rows = (
        100 * rows / reads.keys_mean if reads.keys_mean else None for rows in (reads.kept_mean, reads.value_rows_mean)
    )
    return _Place(point, name, change(found, dense), (kept, value_rows, None if both is None else 100 * both))


def _draw_curve(axes: Any, places: Sequence[_Place], share: int, index: int) -> None:
    shares = [place.shares[share] for place in places]
    values = [place.change.value for place in places]
    look = style(index)
    if all(each == 0 for each in shares):  # which has no place on a logarithmic scale
        axes.axhline(values[0], color=look.color, linestyle=look.linestyle, label=f"{places[0].name}: reads 0 %")
        return
    errors = [place.change.standard_error or 0.0 for place in places]
    shown = [each or math.nan for each in shares]
    axes.errorbar(shown, values, errors, **look._asdict(), label=places[0].name, capsize=2, markersize=5, linewidth=1.4)


def _change_label(dense: Measurement, places: Sequence[_Place]) -> str:
    better = "higher is better" if dense.higher_is_better else "lower is better"
    return f"{score_name(dense)} against dense ({score(dense)}), {places[0].change.unit}; {better}"


def _data(places: Sequence[_Place], dense: Measurement) -> list[Sequence[object]]:
    head = (
        "method", "thresholds", "k", "kept_percent", "value_rows_percent", "key_and_value_rows_percent", "change",
        "standard_error", "unit", "dense_score",
    )  # fmt: skip
    rows = [
        (place.name, place.point.table, place.point.k, *place.shares, place.change.value, place.change.standard_error,
         place.change.unit, fmean(dense.scores))
        for place in places
    ]  # fmt: skip
    return [head, *rows]
