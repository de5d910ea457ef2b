"""Shows a comparison as a table for people, JSON for programs, and a plot."""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from .._outputs import save_figure
from .reads import KeptSpread, Reads
from .tasks.perplexity import Result

_COLUMNS = ("method", "k", "ppl", "change", "kept", "V rows", "fewer", "V rows, all layers", "k̃/k")
_SHORT_COLUMNS = ("method", "k", "perplexity against dense", "V rows read", "fewer", "k̃/k")
#: The rows of the short table: family and k.
_SHORT_ROWS = (
    ("dense", None), ("Top-k + SDC + VMC", 32), ("Top-θ post + VMC", 32), ("Top-θ post + VMC", 64),
    ("Top-θ pre + SDC + VMC", 64), ("last-k", 32),
)  # fmt: skip
_CAPTION = (
    "change: perplexity against dense, with the standard error of the windows' paired differences.\n"
    "kept: attention elements per row and head. V rows: per row and KV group, mean / p95 / max. Layers from 2 on\n"
    "unless said otherwise; the first two keep 512. last-k and random-k read as many V rows as Top-θ post + VMC."
)

#: The curves of the plot in the order of its legend, with colour and marker.
STYLES = {
    "Top-k + SDC + VMC": ("tab:gray", "s"),
    "Top-θ post + VMC": ("tab:blue", "o"),
    "Top-θ post": ("tab:cyan", "o"),
    "Top-θ pre + SDC + VMC": ("tab:green", "^"),
    "Top-θ pre": ("tab:olive", "^"),
    "random-k + SDC + VMC": ("tab:orange", "x"),
    "last-k": ("tab:red", "v"),
}


def change(result: Result, dense: Result) -> float:
    """Perplexity above dense, in percent."""
    return 100 * (result.perplexity / dense.perplexity - 1)


def standard_error(result: Result, dense: Result) -> float | None:
    """Of the change, in percent: each window is compared with its own dense figure; None for one window."""
    if len(result.nats) < 2:
        return None
    differences = [ours - theirs for ours, theirs in zip(result.nats, dense.nats, strict=True)]
    spread = statistics.stdev(differences) / math.sqrt(len(differences))
    return 100 * math.exp(statistics.fmean(differences)) * spread


def as_table(results: Sequence[Result], title: str) -> Table:
    """Make a rich table; the first result is the dense one."""
    dense = results[0]
    table = Table(title=title, box=SIMPLE_HEAD, caption=_CAPTION, padding=(0, 1))
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    family = dense.family
    for result in results:
        if result.family != family:
            table.add_section()
            family = result.family
        table.add_row(*row_cells(result, dense))
    return table


def as_markdown(results: Sequence[Result]) -> str:
    """Make the same table for a page."""
    return _markdown(_COLUMNS, [row_cells(result, results[0]) for result in results])


def as_short_markdown(results: Sequence[Result]) -> str:
    """Take six rows of it for a first look."""
    found = {(result.family, result.k): result for result in results}
    rows = []
    for row in _SHORT_ROWS:
        result = found[row]
        cells = dict(zip(_COLUMNS, row_cells(result, results[0]), strict=True))
        perplexity = cells["ppl"] if result is results[0] else cells["change"]
        rows.append([
            cells["method"], cells["k"], perplexity, f"{result.reads.value_rows_mean:.0f}", cells["fewer"], cells["k̃/k"]
        ])  # fmt: skip
    return _markdown(_SHORT_COLUMNS, rows)


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def row_cells(result: Result, dense: Result) -> list[str]:
    """Write one row of the table."""
    return [
        result.family,
        "" if result.k is None else str(result.k),
        f"{result.perplexity:.3f}",
        "" if result is dense else change_text(result, dense),
        f"{result.reads.kept_mean:.0f}",
        _spread(result.reads),
        f"{result.reads.value_row_saving:.1f}x" if result.reads.value_rows_mean else "",
        _spread(result.reads_all),
        "" if result.kept_over_k is None else f"{result.kept_over_k:.2f}",
    ]


def change_text(result: Result, dense: Result) -> str:
    """Write change and standard error for people."""
    error = standard_error(result, dense)
    return f"{change(result, dense):+.2f} %" if error is None else f"{change(result, dense):+.2f} ± {error:.2f} %"


def _spread(reads: Reads) -> str:
    return f"{reads.value_rows_mean:.0f} / {reads.value_rows_p95:.0f} / {reads.value_rows_max:.0f}"


def as_json(results: Sequence[Result], settings: Mapping[str, Any]) -> str:
    """Write all figures with the settings and the versions behind them."""
    dense = results[0]
    environment = {"python": platform.python_version(), "torch": torch.__version__}
    rows = [
        asdict(result) | {
            "perplexity": result.perplexity, "change_percent": change(result, dense),
            "standard_error_percent": standard_error(result, dense),
        }
        for result in results
    ]  # fmt: skip
    return json.dumps({"settings": dict(settings), "environment": environment, "results": rows}, indent=1) + "\n"


def from_json(text: str) -> list[Result]:
    """Read the results that `as_json` wrote."""
    return [
        Result(
            row["family"],
            row["k"],
            tuple(row["nats"]),
            row["kept_over_k"],
            Reads(**row["reads"]),
            Reads(**row["reads_all"]),
            KeptSpread(**row["spread"]) if row.get("spread") else None,
        )
        for row in json.loads(text)["results"]
    ]


def save_plot(results: Sequence[Result], path: Path, title: str) -> None:
    """Draw perplexity change against V rows read, and k~/k against k; needs the extra ``plot``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    dense = results[0]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), width_ratios=(3, 2), layout="constrained")
    for family, (colour, marker) in STYLES.items():
        points = [result for result in results if result.family == family]
        if not points:
            continue
        rows = [point.reads.value_rows_mean for point in points]
        left.plot(rows, [change(point, dense) for point in points], color=colour, marker=marker, label=family)
        if family != "Top-k + SDC + VMC" and points[0].kept_over_k is not None:
            right.plot(
                [point.k for point in points], [point.kept_over_k for point in points], color=colour, marker=marker
            )
    left.set_xscale("log", base=2)
    low, high = left.get_xlim()  # whole octaves, so that there are figures along the axis
    left.set_xlim(2 ** math.floor(math.log2(low)), 2 ** math.ceil(math.log2(high)))
    left.set_yscale("symlog", linthresh=0.5)
    left.set_ylim(-0.5, 1000)
    left.axhline(0, color="black", linewidth=0.8)
    left.axhline(0.5, color="black", linewidth=0.8, linestyle=":")
    left.set_xlabel(f"V rows read per KV group and row, layers ≥ 2 (dense: {dense.reads.value_rows_mean:.0f})")
    left.set_ylabel("perplexity above dense [%] (linear below 0.5)")
    left.legend(fontsize=8)
    right.set_xscale("log", base=2)
    right.axhspan(0.9, 1.1, color="tab:gray", alpha=0.2)
    right.set_xlabel("k asked for")
    right.set_ylabel("k̃/k, elements kept per head over k, layers ≥ 2")
    for axes in (left, right):
        axes.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
    figure.suptitle(title)
    save_figure(path, figure)
    pyplot.close(figure)
