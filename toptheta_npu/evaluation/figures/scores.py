"""Scores of an evaluation drawn: what is lost against what is saved, the ablation of compensations, and by prompt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from ..._outputs import Drawing
from ...errors import TopThetaValueError
from ..measurement import Measurement
from ..methods.names import MethodSpec, parse_method
from ..results import Point
from ..summary import Change, change, key_value_share, score, score_name
from .style import (
    COLOUR_MAP,
    COLOURS,
    HATCHES,
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
_BAR = 0.8
_NOT_COMPENSATIONS = ("selection", "layer_k", "page", "tile", "keep")


class _Place(NamedTuple):
    """A point of a trade-off."""

    point: Point
    name: str
    change: Change
    shares: tuple[float | None, float | None, float | None]


def draw_tradeoff(task: str, points: Sequence[Measured]) -> Drawing:
    """The change of score against the share of elements, V rows, and K and V rows, one curve per method."""
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


def _loss(found: Change, dense: Measurement) -> float:
    return -found.value if dense.higher_is_better else found.value


def _losses(found: Change, dense: Measurement) -> tuple[float, float]:
    """The least and the largest loss within the 95 % interval; without an error there is no bound."""
    low, high = found.interval or (-math.inf, math.inf)
    return (-high, -low) if dense.higher_is_better else (low, high)


def _cheapest(places: Sequence[_Place], dense: Measurement) -> str:
    """Of the methods whose loss is certainly below the limit, the one that reads the fewest V rows."""
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


def draw_ablation(task: str, points: Sequence[Measured]) -> Drawing:
    """The change of score with and without SDC and VMC, as bars: a panel per method, a group per k."""
    file, needs = file_name("ablation", task), f"the dense point, and one method of {task} with other sdc or vmc"
    dense, groups = dense_of(points), _ablations(points)
    if dense is None or not groups:
        return Drawing(file, None, needs)
    figure, panels = grid(len(groups), width=5.6, height=4.2)
    data: list[Sequence[object]] = [("method", "k", "compensation", "change", "standard_error", "unit")]
    changes = {name: _changes(bars, dense) for name, bars in groups.items()}
    every = [each for bars in changes.values() for by_k in bars.values() for each in by_k.values()]
    for axes, (name, bars) in zip(panels, changes.items(), strict=True):
        _draw_bars(axes, bars)
        if max(abs(each.value) for each in every) > _WIDE:
            around_zero(axes.yaxis, _NO_LOSS)
        finish(axes, "k, elements asked for", _change_label(dense, every[0].unit), name)
        data += [(name, k, bar, *each) for bar, by_k in bars.items() for k, each in by_k.items()]
    headline(figure, f"{task}: {_ablation_title(changes, dense)}")
    return Drawing(file, figure, needs, data)


_Ablations = dict[str, dict[str, list[Measured]]]


def _ablations(points: Sequence[Measured]) -> _Ablations:
    """By method and thresholds, and in these by compensation: the points, where there is more than one compensation."""
    found: dict[tuple[MethodSpec, str | None], dict[str, list[Measured]]] = {}
    names: dict[tuple[MethodSpec, str | None], str] = {}
    for point, measurement in points:
        spec = _spec_of(point)
        if spec is None or spec.sdc is None or point.k is None:
            continue
        base = (replace(spec, sdc=None, vmc=None, gamma=None), point.table)
        found.setdefault(base, {}).setdefault(_compensation(spec), []).append((point, measurement))
        options = replace(parse_method(spec.name), **{name: getattr(spec, name) for name in _NOT_COMPENSATIONS})
        names[base] = f"{options.text}{f', {point.table}' if point.table else ''}"
    return {names[base]: bars for base, bars in found.items() if len(bars) > 1}


def _spec_of(point: Point) -> MethodSpec | None:
    """None for a method of another version."""
    try:
        return parse_method(point.method)
    except TopThetaValueError:
        return None


def _compensation(spec: MethodSpec) -> str:
    gamma = f" {spec.gamma:g}" if spec.sdc == "exp_threshold" else ""
    words = [] if spec.sdc == "none" else [f"{spec.sdc} SDC{gamma}"]
    return " + ".join([*words, *(["VMC"] if spec.vmc else [])]) or "neither"


def _changes(bars: Mapping[str, Sequence[Measured]], dense: Measurement) -> dict[str, dict[int, Change]]:
    return {
        name: {point.k: change(measurement, dense) for point, measurement in points if point.k is not None}
        for name, points in sorted(bars.items(), key=lambda item: (item[0] != "neither", item[0]))
    }


def _draw_bars(axes: Any, bars: Mapping[str, Mapping[int, Change]]) -> None:
    ks = sorted({k for by_k in bars.values() for k in by_k})
    width = _BAR / len(bars)
    for index, (name, by_k) in enumerate(bars.items()):
        places = [ks.index(k) + (index - (len(bars) - 1) / 2) * width for k in by_k]
        errors = [each.standard_error or 0.0 for each in by_k.values()]
        axes.bar(
            places, [each.value for each in by_k.values()], width, yerr=errors, capsize=2, label=name,
            color=COLOURS[index % len(COLOURS)], hatch=HATCHES[index % len(HATCHES)], edgecolor="white", linewidth=0.5,
        )  # fmt: skip
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    axes.legend(fontsize=8, frameon=False)


def _ablation_title(changes: Mapping[str, Mapping[str, Mapping[int, Change]]], dense: Measurement) -> str:
    """Which compensation is better than another by the most, where their 95 % intervals lie apart."""
    pairs = [
        (name, k, better, worse, bars[better][k], bars[worse][k])
        for name, bars in changes.items()
        for better, worse in itertools.permutations(bars, 2)
        for k in bars[better].keys() & bars[worse].keys()
    ]
    if not pairs:
        return "compensations at different k"
    apart = [pair for pair in pairs if _losses(pair[-2], dense)[1] < _losses(pair[-1], dense)[0]]
    if not apart:
        return "the 95 % intervals of all compensations overlap"
    name, k, better, worse, less, more = max(
        sorted(apart), key=lambda pair: _loss(pair[-1], dense) - _loss(pair[-2], dense)
    )
    return f"with {name} at k = {k}, {better} ({less}) is better than {worse} ({more})"


def draw_prompts(task: str, points: Sequence[Measured], k: int | None) -> Drawing:
    """Mean score by length and depth of the prompts, a heat map per method."""
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
