"""Plots a table: theta over the row length with the fitted function, and over k. It needs the extra ``plot``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._outputs import Drawing, new_figure, require_matplotlib, save_figures
from .summary import shown_lengths
from .table import ThresholdTable

#: What `save_plots` may write.
FILES = ("theta_length.png", "theta_k.png")
_HEADS, _PANELS = 4, 3


def save_plots(table: ThresholdTable, k: int, layer: int | None, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw theta at ``k`` over the length, and over k.

    Args:
        table: the table.
        k: within the calibrated range.
        layer: to draw alone; None: the first, a middle and the last of those that have thresholds.
        folder: where the files go.

    Returns:
        The files, and a sentence for each plot that the table does not allow.
    """
    require_matplotlib()
    layers = _shown_layers(table) if layer is None else [layer]
    drawings = zip(
        FILES,
        (_draw_lengths(table, k, layers), _draw_ks(table, k, layers)),
        ("a layer with thresholds at this k", "a layer with thresholds for two k or more"),
        strict=True,
    )
    return save_figures(folder, (Drawing(*each) for each in drawings))


def _shown_layers(table: ThresholdTable) -> list[int]:
    """Choose the first, a middle and the last of the layers that have thresholds and keep k, not their own minimum."""
    with_thresholds = [layer for layer in range(table.num_layers) if bool(table.theta[:, layer].isfinite().any())]
    known = [layer for layer in with_thresholds if table.layer_k[layer] < int(table.k[-1])] or with_thresholds
    return _spread(known)


def _spread(layers: list[int]) -> list[int]:
    places = np.linspace(0, max(len(layers) - 1, 0), min(_PANELS, len(layers))).round().astype(int)
    return [layers[place] for place in places]


def _draw_lengths(table: ThresholdTable, k: int, layers: Sequence[int]) -> Any:
    tabulated, fitted = table.at(k), table.at(k, lookup="fitted")
    layers = [layer for layer in layers if bool(tabulated.theta[layer].isfinite().any())]
    if not layers:
        return None
    figure, panels = _panels(len(layers))
    for axes, layer in zip(panels, layers, strict=True):
        knots = table.lengths[table.lengths > tabulated.layer_targets[layer]]
        lengths = torch.arange(int(knots[0]), tabulated.longest + 1, device="cpu")
        theta, curve = tabulated.theta[layer][knots], fitted.theta[layer][lengths]
        for number, head in enumerate(_shown_heads(theta)):
            colour = f"C{number}"
            axes.plot(knots, theta[:, head], ".", color=colour, markersize=4, label=f"head {head}")
            axes.plot(lengths, curve[:, head], color=colour, linewidth=1, alpha=0.8)
        axes.set_title(f"layer {layer}: {_last_doubling(table, knots, theta)}", loc="left", fontsize=9)
        _finish(table, axes, "row length n")
    found = f"points: at the calibrated lengths; lines: the fitted function, R² {_r_squared(table, k, layers)}"
    figure.suptitle(f"θ over the row length at k = {k}\n{found}", fontsize=10)
    return figure


def _draw_ks(table: ThresholdTable, k: int, layers: Sequence[int]) -> Any:
    least, most = (table.calibrated_targets[end].tolist() for end in (0, -1))
    layers = [layer for layer in layers if least[layer] < most[layer] and bool(table.theta[:, layer].isfinite().any())]
    if not layers:
        return None
    figure, panels = _panels(len(layers))
    for axes, layer in zip(panels, layers, strict=True):
        for number, length in enumerate(shown_lengths(table, k)):
            theta = table.theta[:, layer, :, int((table.lengths == length).nonzero())]
            known = theta.isfinite().any(dim=1)
            ks, mean = table.k[known], _mean(table, theta[known])
            axes.plot(ks, mean, "o-", color=f"C{number}", markersize=4, label=f"n = {length}")
        # the last of the lengths, where every k has thresholds
        axes.set_title(f"layer {layer}: {_per_doubling(table, ks, mean)} at n = {length}", loc="left", fontsize=9)
        _finish(table, axes, "k, elements asked for")
    mean_of = "geometric mean" if table.placement == "post_softmax" else "mean"
    figure.suptitle(f"θ over k at several row lengths n\nthe {mean_of} over the heads", fontsize=10)
    return figure


def _over_doublings(axes: Any, quantity: str, value: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(quantity)
    axes.set_ylabel(value)
    axes.spines[["top", "right"]].set_visible(False)


def _panels(count: int) -> tuple[Any, list[Any]]:
    return new_figure(1, count, (max(1 + 4.6 * count, 7), 4.6))


def _shown_heads(theta: Tensor) -> list[int]:
    """Choose heads from the lowest to the highest mean of ``theta`` [R, Hq], evenly spread, that are not dense."""
    known = theta.isfinite().all(dim=0).nonzero()[:, 0]
    order = known[theta[:, known].mean(dim=0).argsort()].tolist()
    count = min(_HEADS, len(order))
    return [order[round(index * (len(order) - 1) / max(count - 1, 1))] for index in range(count)]


def _mean(table: ThresholdTable, theta: Tensor) -> Tensor:
    """Average over the heads [..., Hq] that are not dense; after the softmax, average the logarithms."""
    line = theta.double().log() if table.placement == "post_softmax" else theta.double()
    mean = line.masked_fill(~line.isfinite(), torch.nan).nanmean(dim=-1)
    return mean.exp() if table.placement == "post_softmax" else mean


def _last_doubling(table: ThresholdTable, knots: Tensor, theta: Tensor) -> str:
    """Say how much the mean over the heads of ``theta`` [R, Hq] changes from half the longest length to that."""
    half = int((knots - knots[-1] / 2).abs().argmin())
    before, after = (_mean(table, theta[index]).item() for index in (half, -1))
    where = f"from n = {knots[half]} to {knots[-1]} θ"
    if table.placement == "post_softmax":
        return f"{where} {'grows' if after >= before else 'shrinks'} {max(after / before, before / after):.2g}-fold"
    return f"{where} {'rises' if after >= before else 'falls'} by {abs(after - before):.2f}"


def _per_doubling(table: ThresholdTable, ks: Tensor, mean: Tensor) -> str:
    """Say how much ``mean`` [K] falls when k doubles, on average over ``ks``."""
    if len(ks) < 2:
        return "thresholds at one k"
    line = mean.log() if table.placement == "post_softmax" else mean
    fall = float(line[0] - line[-1]) / math.log2(int(ks[-1]) / int(ks[0]))
    if table.placement == "post_softmax":
        return f"twice the k divides θ by {math.exp(fall):.2f}"
    return f"twice the k lowers θ by {fall:.2f}"


def _r_squared(table: ThresholdTable, k: int, layers: Sequence[int]) -> str:
    nearest = int((table.k.double().log() - math.log(k)).abs().argmin())
    values = table.fit().r_squared[nearest, list(layers)]
    values = values[~values.isnan()]
    return f"{values.min():.2f} to {values.max():.2f}" if len(values) else "not known"


def _finish(table: ThresholdTable, axes: Any, quantity: str) -> None:
    _over_doublings(axes, quantity, f"θ, {table.unit}")
    if table.placement == "post_softmax":
        axes.set_yscale("log")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)
