"""Draws what attention read by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..._outputs import Drawing
from ..methods.method import DENSER_LAYERS
from ..reads import LayerReads
from .style import (
    Measured,
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


def draw_traffic(task: str, points: Sequence[Measured], k: int | None) -> Drawing:
    """Draw mean V rows and K rows of every layer, a curve per method."""
    file = file_name("traffic", task, None if k is None else f"k{k}")
    found = {name: measurement.layers for name, measurement in at_k(points, k).items() if measurement.layers}
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
    at = "" if k is None else f" at k = {k}"
    headline(figure, f"{task}{at}: {_most_read(found)}")
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
