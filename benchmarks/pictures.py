"""Draws the two pictures of README.md: what the method does to one row of attention, and what a model loses by it.

    python -m benchmarks.pictures

The row is one of the embedded model's, under a large `tau`; the losses are those of docs/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.real_model_study import comparisons
from benchmarks.real_model_study.__main__ import RESULTS
from benchmarks.real_model_study.analysis import Runs, mean_of, percent
from benchmarks.real_model_study.settings import HEADLINE, TAU, Arm
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.figures.style import COLOURS, finish, grid, headline, style

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
KEPT, DROPPED = COLOURS[1], "#B0B0B0"
#: The row that is drawn: its keys, its threshold, and its place in the embedded model.
KEYS, ROW_TAU, LAYER, HEAD = 512, 0.0025, 3, 7
#: The tau whose loss is the title of the other picture.
BEST = 0.00015


@dataclass(frozen=True)
class Row:
    """One row of attention: the probability of every key, and the threshold."""

    probabilities: NDArray[np.float32]
    threshold: float

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Which keys lie above the threshold."""
        return self.probabilities > self.threshold

    @property
    def kept_weight(self) -> float:
        """The sum of their probabilities."""
        return float(self.probabilities[self.kept].sum())


def row_of_the_embedded_model() -> Row:
    """Take the last row of one head over a held-out text."""
    model, tokenizer = load_tiny_llama()
    model.set_attn_implementation("eager")
    tokens = corpus.token_windows(tokenizer, "evaluation", KEYS, 1)
    with torch.inference_mode():
        attention = model(tokens, output_attentions=True).attentions[LAYER][0, HEAD, -1]
    return Row(attention.numpy(), ROW_TAU)


def draw_method(row: Row, file: Path) -> None:
    """Draw the probabilities with their threshold, the K and V rows that are read, and the compensation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    panels = figure.subplots(4, 1, height_ratios=(10, 1.2, 1.2, 1.2), gridspec_kw={"hspace": 0.08})
    _draw_scores(panels[0], row)
    every = np.ones_like(row.kept)
    _draw_rows(panels[1], every, "1. K: read in full,\nto compute the scores")
    _draw_rows(panels[2], row.kept, f"3. V: {row.kept.sum()} of {KEYS} rows\nare read")
    _draw_weights(panels[3], row)
    figure.suptitle("The newest token in one head: V is read only for tokens above the threshold", fontsize=11)
    figure.savefig(file, dpi=120)


def _draw_scores(axes: Any, row: Row) -> None:
    position = np.arange(KEYS)
    for shown, colour, size in ((~row.kept, DROPPED, 8), (row.kept, KEPT, 16)):
        axes.scatter(position[shown], row.probabilities[shown], s=size, color=colour, linewidths=0)
    axes.axhline(row.threshold, color="black", linewidth=1.2, linestyle="--")
    axes.annotate(
        f"threshold\ntau = {row.threshold}", (KEYS, row.threshold), (1.01, row.threshold), fontsize=9,
        textcoords=("axes fraction", "data"), va="center",
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlim(-1, KEYS)
    finish(
        axes,
        "position of the token",
        "probability",
        f"2. The probability of each of {KEYS} tokens, and the threshold",
    )


def _draw_rows(axes: Any, read: NDArray[np.bool_], name: str) -> None:
    for position in np.flatnonzero(read):
        axes.axvspan(position - 0.5, position + 0.5, color=KEPT, linewidth=0)
    _strip(axes, (-1, KEYS), name)


def _draw_weights(axes: Any, row: Row) -> None:
    kept = row.kept_weight
    axes.barh(0, kept, color=KEPT)
    axes.barh(0, 1 - kept, left=kept, color=DROPPED)
    axes.text(
        kept / 2,
        0,
        f"{kept:.0%} of the attention goes to the V rows that were read",
        ha="center",
        va="center",
        fontsize=9,
    )
    axes.text(1.01, 0, f"{1 - kept:.0%} goes to the\nmean of all V rows", va="center", fontsize=9)
    axes.set_ylim(-0.4, 0.4)
    _strip(axes, (0, 1), "4. Compensation\nfor the rest")


def _strip(axes: Any, limits: tuple[float, float], name: str) -> None:
    axes.set(xlim=limits, xticks=[], yticks=[])
    axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)


def draw_loss(runs: Runs, uncalibrated: Runs, file: Path) -> None:
    """Draw the loss against the V rows read; ``uncalibrated`` has one ``tau`` for all heads."""
    figure, [axes] = grid(1, width=6.0, height=2.4)
    curves = {
        "Top-θ, one tau for all heads, no calibration": (uncalibrated, comparisons.TAU_ARMS),
        "exact top-k, one k for all heads": (runs, comparisons.EQUAL_TOP_K),
        "Top-θ, scores calibrated for one k in all heads": (runs, comparisons.EQUAL_THETA),
    }
    for number, (name, (of, arms)) in enumerate(curves.items()):
        share = np.array([100 * of.value_rows[arm].mean() / of.keys for arm in arms if arm in of.losses])
        loss = np.array([percent(mean_of(of.losses[arm])) for arm in arms if arm in of.losses])[:, 0]
        axes.plot(share, loss, **style(number)._asdict(), label=name, markersize=4, linewidth=1.4)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlim(0, 45)
    finish(axes, "V rows read, % of all", "perplexity, % above\nfull attention")
    axes.legend(fontsize=9, frameon=False, handlelength=4)
    best = Arm(f"tau:tau={BEST}").name
    share, loss = uncalibrated.value_rows[best].mean() / uncalibrated.keys, percent(mean_of(uncalibrated.losses[best]))
    title = f"{100 * share:.0f} % of V rows cost {loss.value:.1f} % of perplexity"
    headline(figure, f"SmolLM2-135M, {HEADLINE.length} tokens of prose: {title}")
    figure.savefig(file, dpi=120)


def main() -> None:
    """Draw both."""
    draw_method(row_of_the_embedded_model(), PICTURES / "method.png")
    losses = comparisons.beside(RESULTS, HEADLINE, TAU)
    if losses is None:
        raise LookupError(f"{RESULTS}: no results of {HEADLINE.name} and {TAU.name}")
    draw_loss(*losses, PICTURES / "loss.png")


if __name__ == "__main__":
    main()
