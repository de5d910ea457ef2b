"""Plots theta over the row length with the fitted function. Needs the extra ``plot``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._outputs import new_figure, save_figure
from ..errors import TopThetaValueError
from .table import ThresholdTable

#: What `save_plot` writes.
FILE = "theta_length.png"
_HEADS, _PANELS = 4, 3


def save_plot(table: ThresholdTable, k: int, layer: int | None, folder: Path) -> Path:
    """Draw theta at ``k`` over the length: points at the calibrated lengths, and the fitted function as a line.

    Args:
        table: the table.
        k: elements to keep per row, within the calibrated range.
        layer: the only layer to draw; None: the first, a middle and the last layer with thresholds.
        folder: folder of the file.

    Raises:
        TopThetaValueError: no layer to draw has thresholds at this k, or the file cannot be written.
    """
    tabulated, fitted = table.at(k), table.at(k, lookup="fitted")
    candidates = range(table.num_layers) if layer is None else [layer]
    layers = _spread([each for each in candidates if bool(tabulated.theta[each].isfinite().any())], _PANELS)
    if not layers:
        raise TopThetaValueError("layer", f"a layer with thresholds at k={k}", "none", "choose another layer or k")
    figure, panels = new_figure(1, len(layers), (max(1 + 4.6 * len(layers), 7), 4.6))
    for axes, each in zip(panels, layers, strict=True):
        knots = table.lengths[table.lengths > tabulated.layer_targets[each]]
        lengths = torch.arange(int(knots[0]), tabulated.longest + 1, device="cpu")
        theta, curve = tabulated.theta[each][knots], fitted.theta[each][lengths]
        for number, head in enumerate(_shown_heads(theta)):
            axes.plot(knots, theta[:, head], ".", color=f"C{number}", markersize=4, label=f"head {head}")
            axes.plot(lengths, curve[:, head], color=f"C{number}", linewidth=1, alpha=0.8)
        axes.set(title=f"layer {each}", xlabel="row length n", ylabel=f"θ, {table.unit}")
        axes.set_xscale("log", base=2)
        if table.placement == "post_softmax":
            axes.set_yscale("log")
        axes.legend(fontsize=8, frameon=False)
    figure.suptitle(f"θ over the row length at k = {k}\npoints: calibrated; lines: the fitted function", fontsize=10)
    save_figure(folder / FILE, figure)
    return folder / FILE


def _shown_heads(theta: Tensor) -> list[int]:
    """Choose heads from the lowest to the highest mean of ``theta`` [R, Hq], evenly spread, that are not dense."""
    known = theta.isfinite().all(dim=0).nonzero()[:, 0]
    return _spread(known[theta[:, known].mean(dim=0).argsort()].tolist(), _HEADS)


def _spread(values: list[int], most: int) -> list[int]:
    """Choose up to ``most`` of ``values``, evenly spread from the first to the last."""
    places = np.linspace(0, max(len(values) - 1, 0), min(most, len(values))).round().astype(int)
    return [values[place] for place in places]
