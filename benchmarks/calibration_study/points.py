"""Which thresholds are compared in which table, and on which text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from benchmarks.calibration_study.calibrations import KS, PLACEMENTS, Pass, TableKey, Watcher
from toptheta_npu.thresholds import Placement, ThresholdTable

K = 64
QUANTILES = (0.5, 0.9)
Form = Literal["tabulated", "fitted", "unified", "between"]
#: Held-out texts.
Text = Literal["python", "short python", "prose"]


@dataclass(frozen=True)
class Extent:
    """How much text the study takes. By default it is nearly all that the splits hold.

    Attributes:
        long, short: tokens of a window.
        long_sizes, short_sizes: windows to calibrate on, ascending; of Python source.
        prose: windows of prose to calibrate on.
        windows, positions: held-out windows, and how many of the last tokens of each are predicted.
        prose_files: other prose than that of the running Python.
    """

    long: int = 2560
    short: int = 1024
    long_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    short_sizes: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200)
    prose: int = 16
    windows: int = 8
    positions: int = 512
    prose_files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Point:
    """One measurement: thresholds, k, and the text that they are used on."""

    part: str
    label: str
    key: TableKey
    k: int = K
    form: Form = "tabulated"
    text: Text = "python"


def watchers(placement: Placement) -> tuple[Watcher, ...]:
    """List all estimators of one placement."""
    return (
        Watcher("pooled", placement),
        Watcher("algorithm1", placement),
        Watcher("algorithm1", placement, alpha=0.0),
        *(Watcher("quantile", placement, alpha=0.0, quantile=quantile) for quantile in QUANTILES),
    )


def passes(extent: Extent) -> tuple[Pass, ...]:
    """List the runs of the model. `with_top_k` has its own."""
    pooled = tuple(Watcher("pooled", placement) for placement in PLACEMENTS)
    every = tuple(watcher for placement in PLACEMENTS for watcher in watchers(placement))
    return (
        Pass("python", extent.long, extent.long_sizes, every),
        Pass("python", extent.short, extent.short_sizes, pooled),
        Pass("prose", extent.long, (extent.prose,), pooled),
    )


def points(extent: Extent) -> Iterator[Point]:
    """Yield every measurement but the dense ones."""
    for placement in PLACEMENTS:
        yield from _set_sizes(extent, placement)
    for placement in PLACEMENTS:
        yield from _estimators(extent, placement)
        yield from _paths_to_k(extent, placement)
        yield from _forms(extent, placement)
        yield from _texts(extent, placement)


def _set_sizes(extent: Extent, placement: Placement) -> Iterator[Point]:
    pooled = Watcher("pooled", placement)
    for windows in extent.long_sizes:
        yield Point("long windows", str(windows), TableKey("python", extent.long, windows, pooled))
    for windows in extent.short_sizes:
        key = TableKey("python", extent.short, windows, pooled)
        yield Point("short windows", str(windows), key, text="short python")


def _estimators(extent: Extent, placement: Placement) -> Iterator[Point]:
    for watcher in watchers(placement):
        for k in KS:
            yield Point("estimators", label_of(watcher), _key(extent, watcher), k)


def _paths_to_k(extent: Extent, placement: Placement) -> Iterator[Point]:
    """Yield points of one k: from a table for several, between two k of one, and calibrated alone as in the paper."""
    pooled, paper = Watcher("pooled", placement), Watcher("algorithm1", placement)
    alone = _key(extent, dataclasses.replace(paper, ks=(K,)))
    yield Point("ways to k", "pooled, k among the knots", _key(extent, pooled))
    yield Point("ways to k", "pooled, between k = 32 and 128", _key(extent, pooled), form="between")
    yield Point("ways to k", "Algorithm 1, dense activations", _key(extent, paper))
    yield Point("ways to k", "Algorithm 1, Top-k at calibration", dataclasses.replace(alone, top_k=True))


def _forms(extent: Extent, placement: Placement) -> Iterator[Point]:
    forms: tuple[Form, ...] = ("tabulated", "fitted", "unified")
    for form in forms:
        yield Point("forms", form, _key(extent, Watcher("algorithm1", placement, alpha=0.0)), form=form)


def _texts(extent: Extent, placement: Placement) -> Iterator[Point]:
    pooled = Watcher("pooled", placement)
    texts: tuple[Text, ...] = ("python", "prose")
    for text in texts:
        for key in (_key(extent, pooled), TableKey("prose", extent.long, extent.prose, pooled)):
            yield Point("other text", f"{key.text}, used on {text}", key, text=text)


def label_of(watcher: Watcher) -> str:
    """Name the estimator for people."""
    if watcher.estimator == "pooled":
        return "pooled"
    if watcher.estimator == "quantile":
        return f"quantile {watcher.quantile:g}"
    return f"Algorithm 1, alpha {watcher.alpha:g}"


def thresholds_of(point: Point, tables: Mapping[TableKey, ThresholdTable]) -> ThresholdTable:
    """Make the table of a point, in the point's form."""
    table = tables[point.key]
    if point.form == "between":
        ends = torch.tensor([index for index, k in enumerate(table.k.tolist()) if k != point.k])
        return dataclasses.replace(
            table, k=table.k[ends], theta=table.theta[ends], std=table.std[ends],
            bracket=None if table.bracket is None else table.bracket[:, ends],
        )  # fmt: skip
    return unified(table) if point.form == "unified" else table


def unified(table: ThresholdTable) -> ThresholdTable:
    """Make one threshold per head for rows of all lengths: the mean over all rows that gave one."""
    weights = table.counts[None] * table.theta.isfinite()
    total = weights.sum(-1, keepdim=True)
    theta = (table.theta.masked_fill(~table.theta.isfinite(), 0.0) * weights).sum(-1, keepdim=True) / total
    return dataclasses.replace(
        table, theta=theta.masked_fill(total == 0, -torch.inf).float(), lengths=table.lengths[-1:],
        counts=table.counts.sum(-1, keepdim=True), std=torch.zeros_like(theta).float(), bracket=None,
    )  # fmt: skip


def _key(extent: Extent, watcher: Watcher) -> TableKey:
    return TableKey("python", extent.long, extent.long_sizes[-1], watcher)
