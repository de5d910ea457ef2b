"""Draws scores: what is lost against what is saved, and by prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from ..._outputs import Drawing
from ..measurement import Measurement
from ..results import Point
from ..summary import Change, change, key_value_share, score, score_name
from .style import (
    COLOUR_MAP,
    Measured,
    around_zero,
    at_k,
    cell_colour,
    curve_name,
    curves,
    dense_of,
    file_name,
    finish,
    grid,
    headline,
    legend_below,
    octaves,
    style,
)

#: What counts as no loss: one percent of perplexity, or one point.
_NO_LOSS = 1.0
_WIDE = 20.0


class _Place(NamedTuple):
    """A point of a trade-off."""

    point: Point
    name: str
    change: Change
    shares: tuple[float | None, float | None, float | None]


def draw_tradeoff(task: str, points: Sequence[Measured]) -> Drawing:
    """Draw the change of score against the share of elements, V rows, and K and V rows, one curve per method."""
    file, needs = file_name("tradeoff", task), f"the dense point and another one of {task}"
    dense = dense_of(points)
    others = [pair for pair in points if pair[1] is not dense]
    if dense is None or not others:
        return Drawing(file, None, needs)
    places = [_place(point, curve_name(point, others), found, dense) for point, found in others]
    figure, panels = grid(3, width=4.0, height=4.6)
    unit = places[0].change.unit
    for number, (axes, what) in enumerate(
        zip(panels, ("elements kept", "V rows read", "K and V rows read"), strict=True)
    ):
        for index, name in enumerate(curves(others)):
            _draw_curve(axes, [place for place in places if place.name == name], number, index)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.margins(y=0.1)
        if max(abs(place.change.value) for place in places) > _WIDE:
            around_zero(axes.yaxis, _NO_LOSS)
        octaves(axes.xaxis)
        finish(axes, f"{what}, % of dense attention (layers ≥ 2)", _change_label(dense, unit) if number == 0 else "")
    legend_below(figure, panels[1])
    headline(figure, f"{task}: {_cheapest(places, dense)}")
    return Drawing(file, figure, needs, _tradeoff_data(places, dense))


def _place(point: Point, name: str, found: Measurement, dense: Measurement) -> _Place:
    reads = found.reads
    kept, value_rows = (
        100 * rows / reads.keys_mean if reads.keys_mean else None for rows in (reads.kept_mean, reads.value_rows_mean)
    )
    both = key_value_share(found)
    return _Place(point, name, change(found, dense), (kept, value_rows, None if both is None else 100 * both))


def _draw_curve(axes: Any, places: Sequence[_Place], share: int, index: int) -> None:
    shares = [place.shares[share] for place in places]
    values = [place.change.value for place in places]
    look = style(index)
    if all(each == 0 for each in shares):  # which has no place on a logarithmic scale
        axes.axhline(values[0], color=look.color, linestyle=look.linestyle, label=f"{places[0].name}: reads 0 %")
        return
    errors = [place.change.standard_error or 0.0 for place in places]
    shown = [math.nan if each is None or each == 0 else each for each in shares]
    axes.errorbar(shown, values, errors, **look._asdict(), label=places[0].name, capsize=2, markersize=5, linewidth=1.4)


def _change_label(dense: Measurement, unit: str) -> str:
    better = "higher is better" if dense.higher_is_better else "lower is better"
    return f"{score_name(dense)} against dense ({score(dense)}), {unit}; {better}"


def _losses(found: Change, dense: Measurement) -> tuple[float, float]:
    """Bound the loss by its 95 % interval; without an error there is no bound."""
    low, high = found.interval or (-math.inf, math.inf)
    return (-high, -low) if dense.higher_is_better else (low, high)


def _cheapest(places: Sequence[_Place], dense: Measurement) -> str:
    """Name the method that reads the fewest V rows, of those whose loss is certainly below the limit."""
    limit = f"{_NO_LOSS:g} {places[0].change.unit.removesuffix('s')}"
    near = [
        (share, place)
        for place in places
        if (share := place.shares[1]) is not None and _losses(place.change, dense)[1] <= _NO_LOSS
    ]
    if not near:
        return f"no method is certain (95 %) to lose at most {limit}"
    share, best = min(near, key=lambda each: each[0])
    at = "" if best.point.k is None else f" at k = {best.point.k}"
    return f"of those certain (95 %) to lose at most {limit}, {best.name}{at} reads the fewest V rows, {share:.2g} %"


def _tradeoff_data(places: Sequence[_Place], dense: Measurement) -> list[Sequence[object]]:
    head = (
        "method", "thresholds", "k", "kept_percent", "value_rows_percent", "key_and_value_rows_percent", "change",
        "standard_error", "unit", "dense_score",
    )  # fmt: skip
    rows = [
        (place.name, place.point.table or "", _cell(place.point.k), *map(_cell, place.shares), place.change.value,
         _cell(place.change.standard_error), place.change.unit, fmean(dense.scores))
        for place in places
    ]  # fmt: skip
    return [head, *rows]


def _cell(value: object) -> object:
    return "" if value is None else value


def draw_prompts(task: str, points: Sequence[Measured], k: int | None) -> Drawing:
    """Draw the mean score by length and depth of the prompts, a heat map per method."""
    file = file_name("prompts", task, None if k is None else f"k{k}")
    needs = f"points of {task} whose details have length and depth"
    found = {
        name: _by_prompt(measurement)
        for name, measurement in at_k(points, k).items()
        if {"length", "depth"} <= set(measurement.details)
    }
    if not found:
        return Drawing(file, None, needs)
    figure, panels = grid(len(found))
    for axes, (name, cells) in zip(panels, found.items(), strict=True):
        image = _draw_cells(axes, cells)
        finish(
            axes, "length of the prompt, tokens", "depth of the fact", f"{name}: {100 * fmean(cells.values()):.0f} %"
        )
    figure.colorbar(image, ax=panels, label="answered rightly, share", shrink=0.8)
    (name, cell, share) = min(
        ((name, cell, share) for name, cells in found.items() for cell, share in cells.items()),
        key=lambda each: each[2],
    )
    at = "" if k is None else f" at k = {k}"
    least = f"least right is {name} with {100 * share:.0f} %, length {cell[0]} and depth {cell[1]:g}"
    headline(figure, f"{task}{at}: {least}")
    head = ("method", "length_tokens", "depth", "share_right")
    data = [(name, *cell, share) for name, cells in found.items() for cell, share in cells.items()]
    return Drawing(file, figure, needs, [head, *data])


def _by_prompt(measurement: Measurement) -> dict[tuple[int, float], float]:
    scores: dict[tuple[int, float], list[float]] = {}
    details = measurement.details
    for cell, each in zip(zip(details["length"], details["depth"], strict=True), measurement.scores, strict=True):
        scores.setdefault(cell, []).append(each)
    return {cell: fmean(each) for cell, each in sorted(scores.items())}


def _draw_cells(axes: Any, cells: Mapping[tuple[int, float], float]) -> Any:
    lengths, depths = (sorted({cell[side] for cell in cells}) for side in (0, 1))
    values = [[cells.get((int(length), depth), float("nan")) for length in lengths] for depth in depths]
    image = axes.imshow(values, cmap=COLOUR_MAP, vmin=0, vmax=1, aspect="auto")
    for row, line in enumerate(values):
        for column, share in enumerate(line):
            if share == share:
                axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=8,
                          color=cell_colour(image, share))  # fmt: skip
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    return image
