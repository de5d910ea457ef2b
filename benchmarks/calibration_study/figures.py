"""The study in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.calibration_study.tables import Row, of_part
from toptheta_npu._outputs import save_figure

_COLOURS = {"pre_softmax": "tab:green", "post_softmax": "tab:blue"}
_NAMES = {"pre_softmax": "pre-softmax", "post_softmax": "post-softmax"}


def save_figures(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write every figure into ``folder``."""
    import matplotlib

    matplotlib.use("Agg")
    figures = {"set_size.png": _set_size, "estimators.png": _estimators}
    for name, draw in figures.items():
        draw(rows, folder / name)
    return [folder / name for name in figures]


def _set_size(rows: Sequence[Row], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained", sharex="col", sharey="row")
    for column, (part, length) in enumerate({"long windows": 2560, "short windows": 1024}.items()):
        for placement, colour in _COLOURS.items():
            chosen = [row for row in of_part(rows, part) if row["placement"] == placement]
            _kept(axes[0, column], chosen, colour, _NAMES[placement])
            _value_rows(axes[1, column], chosen, colour)
        axes[0, column].set_title(f"windows of {length} tokens")
        axes[0, column].axhline(1, color="black", linewidth=0.8)
        axes[1, column].set_xlabel("calibration windows")
        axes[1, column].set_xscale("log", base=2)
        axes[1, column].xaxis.set_major_formatter("{x:.0f}")
        axes[1, column].set_ylim(bottom=0)
    axes[0, 0].set_ylabel("k̃/k, with its least and most window")
    axes[1, 0].set_ylabel("V rows per KV group")
    axes[0, 0].legend()
    axes[1, 1].legend(["95th percentile", "mean"], loc="upper right")
    figure.suptitle("Four windows give the mean of what is kept; more do not shorten its tail (k = 64, pooled)")
    save_figure(path, figure)
    pyplot.close(figure)


def _kept(axes: Any, rows: Sequence[Row], colour: str, name: str) -> None:
    sizes = [row["windows"] for row in rows]
    axes.plot(sizes, [row["kept_over_k"] for row in rows], color=colour, marker="o", label=name)
    ends = [[row["spread"][end] for row in rows] for end in ("least_window", "most_window")]
    axes.fill_between(sizes, *ends, color=colour, alpha=0.15)


def _value_rows(axes: Any, rows: Sequence[Row], colour: str) -> None:
    sizes = [row["windows"] for row in rows]
    for name, style in (("value_rows_p95", "--"), ("value_rows_mean", "-")):
        axes.plot(sizes, [row["reads"][name] for row in rows], color=colour, linestyle=style)


def _estimators(rows: Sequence[Row], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained", sharey=True)
    for panel, placement in zip(axes, _COLOURS, strict=True):
        chosen = [row for row in of_part(rows, "estimators") if row["placement"] == placement]
        for label in dict.fromkeys(row["label"] for row in chosen):
            points = [row for row in chosen if row["label"] == label]
            ks = [row["k"] for row in points]
            (line,) = panel.plot(ks, [row["kept_over_k"] for row in points], marker="o", label=label)
            panel.plot(ks, [row["spread"]["p95"] for row in points], color=line.get_color(), linestyle="--")
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_title(_NAMES[placement])
        panel.set_xlabel("k")
        panel.set_yscale("log", base=2)
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:.0f}")
    axes[0].set_ylabel("k̃/k: mean (solid), 95th percentile (dashed)")
    axes[0].legend(fontsize=8)
    figure.suptitle("Pooled thresholds keep k on average; a quantile of 0.9 bounds the tail and keeps half")
    save_figure(path, figure)
    pyplot.close(figure)
