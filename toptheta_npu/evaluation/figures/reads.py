"""Draws what attention read: traffic by layer, k~/k by head, and how many elements rows keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..._outputs import Drawing
from ..methods.method import DENSER_LAYERS
from ..reads import LayerReads
from .style import (
    COLOUR_MAP,
    Measured,
    Style,
    at_k,
    file_name,
    finish,
    grid,
    headline,
    legend_below,
    octaves,
    style,
)

_LAYERS_NEEDED = "points of {} with figures per layer"
#: Steps per octave of the histogram.
_STEPS = 4
#: A method with more of its rows, in percent, in one of them is only named.
_SPIKE = 50


def _suffix(k: int | None) -> str | None:
    return None if k is None else f"k{k}"


def _at(k: int | None) -> str:
    return "" if k is None else f" at k = {k}"


def _layers_at_k(points: Sequence[Measured], k: int | None) -> dict[str, tuple[LayerReads, ...]]:
    return {name: measurement.layers for name, measurement in at_k(points, k).items() if measurement.layers}


def draw_traffic(task: str, points: Sequence[Measured], k: int | None) -> Drawing:
    """Draw mean V rows and K rows of every layer, a curve per method."""
    file = file_name("traffic", task, _suffix(k))
    found = _layers_at_k(points, k)
    if not found:
        return Drawing(file, None, _LAYERS_NEEDED.format(task))
    figure, panels = grid(2, width=5.0, height=4.4)
    names = ("V rows read per row and KV group, mean", "K rows read per row and KV group, mean")
    for axes, what, field in zip(panels, names, ("value_rows_mean", "key_rows_mean"), strict=True):
        for index, (name, layers) in enumerate(found.items()):
            rows = [getattr(layer.reads, field) for layer in layers]
            # a point of 0 has no place on a logarithmic scale
            axes.plot([value or math.nan for value in rows], **style(index)._asdict(), label=name, markersize=5)
        if axes.get_lines() and any(math.isfinite(value) for line in axes.get_lines() for value in line.get_ydata()):
            octaves(axes.yaxis)
        axes.xaxis.get_major_locator().set_params(integer=True)
        finish(axes, "layer", what)
    legend_below(figure, panels[0])
    headline(figure, f"{task}{_at(k)}: {_most_read(found)}")
    head = ("method", "layer", "value_rows_mean", "value_rows_p95", "value_rows_max", "key_rows_mean", "keys_mean")
    data = [
        (name, number, *("" if value is None else value for value in (getattr(layer.reads, each) for each in head[2:])))
        for name, layers in found.items()
        for number, layer in enumerate(layers)
    ]
    return Drawing(file, figure, _LAYERS_NEEDED.format(task), [head, *data])


def _most_read(found: Mapping[str, Sequence[LayerReads]]) -> str:
    sparse = {name: layers for name, layers in found.items() if name != "dense"} or found
    name, layers = next(iter(sparse.items()))
    rows = [layer.reads.value_rows_mean for layer in layers]
    most, later = rows.index(max(rows)), rows[DENSER_LAYERS:]
    text = f"with {name}, layer {most} reads the most V rows, {rows[most]:.0f}"
    return f"{text}; the layers from {DENSER_LAYERS} on {min(later):.0f} to {max(later):.0f}" if later else text


def draw_kept_over_target(task: str, points: Sequence[Measured], k: int | None) -> Drawing:
    """Draw k~/k of every layer and query head, a heat map per method."""
    file = file_name("kept-over-k", task, _suffix(k))
    needs = f"points of {task} with a k, and rows of more keys than that"
    found = {
        name: np.array([[math.nan if each is None else each for each in layer.kept_over_target] for layer in layers])
        for name, layers in _layers_at_k(points, k).items()
        if any(each is not None for layer in layers for each in layer.kept_over_target)
    }
    if not found:
        return Drawing(file, None, needs)
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ends = [
        end(np.nanmin(ratios) if end is min else np.nanmax(ratios) for ratios in found.values()) for end in (min, max)
    ]
    low, high = min(max(ends[0], 1e-3), 0.8), max(ends[1], 1.25)
    figure, panels = grid(len(found), width=3.4)
    for axes, (name, ratios) in zip(panels, found.items(), strict=True):
        image = axes.imshow(ratios, cmap=COLOUR_MAP, norm=LogNorm(low, high), aspect="auto", origin="lower")
        finish(axes, "query head", "layer", f"{name}: {np.nanmin(ratios):.2f} to {np.nanmax(ratios):.2f}")
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
    bar = figure.colorbar(image, ax=panels, label="k̃/k, elements kept over elements asked for", shrink=0.8)
    bar.set_ticks([tick for tick in (0.1, 0.25, 0.5, 0.8, 1, 1.25, 2, 4, 8) if low <= tick <= high])
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    headline(figure, f"{task}{_at(k)}: {_furthest(found)}")
    head = ("method", "layer", "head", "kept_over_k")
    data = [
        (name, layer, number, "" if math.isnan(ratio) else float(ratio))
        for name, ratios in found.items()
        for (layer, number), ratio in np.ndenumerate(ratios)
    ]
    return Drawing(file, figure, needs, [head, *data])


def _furthest(found: Mapping[str, Any]) -> str:
    away = {name: np.nan_to_num(np.abs(np.log(np.maximum(ratios, 1e-9)))) for name, ratios in found.items()}
    name = max(away, key=lambda each: away[each].max())
    layer, head = np.unravel_index(away[name].argmax(), away[name].shape)
    return f"furthest from 1 is {name}, {found[name][layer, head]:.2f} in layer {layer}, head {head}"


def draw_kept(task: str, points: Sequence[Measured], k: int | None) -> Drawing:
    """Draw how many elements the rows keep, as a density over octaves, a curve per method; layers from 2 on."""
    file = file_name("kept", task, _suffix(k))
    needs = f"points of {task} with a histogram of kept elements in layers from {DENSER_LAYERS} on"
    found = {
        name: shares
        for name, layers in _layers_at_k(points, k).items()
        if name != "dense" and (shares := _shares(layers[DENSER_LAYERS:]))
    }
    if not found:
        return Drawing(file, None, needs)
    figure, (axes,) = grid(1, width=7.2, height=4.4)
    for index, (name, shares) in enumerate(found.items()):
        _draw_density(axes, name, shares, style(index))
    if k is not None:
        axes.axvline(k, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(f" k = {k}", (k, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8)
    octaves(axes.xaxis)
    axes.set_ylim(0)
    finish(axes, "elements kept per row and query head", "rows and heads, % per octave")
    legend_below(figure, axes)
    headline(figure, f"{task}{_at(k)}, layers ≥ {DENSER_LAYERS}: {_halves(found)}")
    data = [(name, *ends, share) for name, shares in found.items() for ends, share in shares.items()]
    return Drawing(file, figure, needs, [("method", "kept_from", "kept_below", "percent"), *data])


_Shares = dict[tuple[int, int], float]


def _shares(layers: Sequence[LayerReads]) -> _Shares:
    """Share out the pairs of row and head by the ends of their quarter octave, in percent."""
    counts: dict[tuple[int, int], int] = {}
    for layer in layers:
        for number, count in layer.kept_histogram:
            counts[_step(number)] = counts.get(_step(number), 0) + count
    total = sum(counts.values())
    return {ends: 100 * counts[ends] / total for ends in sorted(counts)}


def _step(number: int) -> tuple[int, int]:
    """Find the ends of a quarter of the octave; below 8 every number has a step of its own."""
    shift = max(0, number.bit_length() - _STEPS.bit_length())
    return number >> shift << shift, (number >> shift) + 1 << shift


def _draw_density(axes: Any, name: str, shares: _Shares, look: Style) -> None:
    (start, end), fullest = max(shares.items(), key=lambda each: each[1])
    if fullest > _SPIKE:  # as a curve it would hide all others
        where = f"at {start}" if end == start + 1 else f"from {start} to {end - 1}"
        axes.plot([], [], **look._asdict(), label=f"{name}: {fullest:.0f} % {where}")
        return
    density = {ends: share / math.log2(ends[1] / ends[0]) for ends, share in shares.items() if ends[0]}
    none = shares.get((0, 1), 0.0)
    label = f"{name}: {none:.1f} % keep none" if none else name
    axes.plot([math.sqrt(ends[0] * ends[1]) if ends[1] > 8 else ends[0] for ends in density], list(density.values()),
              **look._asdict(), label=label, markersize=4)  # fmt: skip


def _halves(found: Mapping[str, _Shares]) -> str:
    name, shares = next(iter(found.items()))
    sums, ends = np.cumsum(list(shares.values())), list(shares)
    half, most = (ends[int(np.searchsorted(sums, percent - 1e-9))][1] - 1 for percent in (50, 95))
    return f"with {name}, half of the rows and heads keep at most {half} elements, 95 % at most {most}"
