"""The figure of the page: what perplexity loses against the V rows that are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_model_study.analysis import Runs, mean_of, percent
from benchmarks.real_model_study.comparisons import BUDGET_ARMS, EQUAL_THETA, EQUAL_TOP_K
from benchmarks.real_model_study.settings import COMPARED_ROWS, Part, budget
from toptheta_npu.evaluation.figures.style import finish, grid, headline, legend_below, octaves, style

CURVES: dict[str, Sequence[str]] = {
    "Top-θ, one k (512 in two layers)": EQUAL_THETA,
    "exact Top-k, one k (512 in two layers)": EQUAL_TOP_K,
    "Top-θ, budgets": BUDGET_ARMS,
    "exact Top-k, k of a budget": tuple(budget(rows, "top-k").name for rows in COMPARED_ROWS),
}


def draw(part: Part, runs: Runs, file: Path) -> None:
    """Draw the loss of every curve with its 95 % bounds."""
    figure, [axes] = grid(1, width=6.4, height=4.4)
    for number, (name, arms) in enumerate(CURVES.items()):
        present = [arm for arm in arms if arm in runs.losses]
        if present:
            _draw_curve(axes, runs, present, name, number)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.margins(x=0.02)
    octaves(axes.xaxis)
    finish(axes, "V rows per row and KV head, all layers", "perplexity against dense, %, with 95 % bounds")
    legend_below(figure, axes)
    headline(figure, f"SmolLM2-135M, {part.text}, {part.length} keys: measured in {len(runs.dense)} documents")
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
