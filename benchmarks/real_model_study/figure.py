"""The figure of the page: what perplexity loses against the V rows that are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_model_study.analysis import Runs, mean_of, percent
from benchmarks.real_model_study.comparisons import EQUAL_THETA, EQUAL_TOP_K, TAU_ARMS
from benchmarks.real_model_study.settings import Part
from toptheta_npu.evaluation.figures.style import finish, grid, headline, legend_below, octaves, style


def draw(part: Part, by_k: Runs, by_tau: Runs, file: Path) -> None:
    """Draw the loss of every curve with its 95 % bounds."""
    figure, [axes] = grid(1, width=6.4, height=4.4)
    curves: dict[str, tuple[Runs, Sequence[str]]] = {
        "Top-θ, tau": (by_tau, TAU_ARMS),
        "exact top-k": (by_k, EQUAL_TOP_K),
        "Top-θ, calibrated pre-softmax thresholds": (by_k, EQUAL_THETA),
    }
    for number, (name, (runs, arms)) in enumerate(curves.items()):
        if present := [arm for arm in arms if arm in runs.losses]:
            _draw_curve(axes, runs, present, name, number)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.margins(x=0.02)
    octaves(axes.xaxis)
    finish(axes, "V rows read per token and KV head, mean of all layers", "perplexity change, %, with 95 % bounds")
    legend_below(figure, axes)
    headline(figure, f"SmolLM2-135M, {part.text}, {part.length} keys, measured on {len(by_k.dense)} documents")
    figure.savefig(file, dpi=120)


def _draw_curve(axes: Any, runs: Runs, arms: Sequence[str], name: str, number: int) -> None:
    rows = np.array([runs.value_rows[arm].mean() for arm in arms])
    losses = np.array([percent(mean_of(runs.losses[arm])) for arm in arms])
    order = rows.argsort()
    rows, losses = rows[order], losses[order]
    errors = np.abs(losses[:, 1:] - losses[:, :1]).T
    axes.errorbar(
        rows, losses[:, 0], errors, **style(number)._asdict(), label=name, capsize=2, markersize=5, linewidth=1.4
    )
