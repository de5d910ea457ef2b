"""Runs the calibrations and the measurements on as many threads as there are cores."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.calibration_study import points
from benchmarks.calibration_study.calibrations import PLACEMENTS, TableKey, run_pass, with_top_k
from benchmarks.calibration_study.points import Extent, K, Point, Text
from benchmarks.calibration_study.texts import windows_of
from toptheta_npu.evaluation.corpus import Split
from toptheta_npu.evaluation.methods import kinds
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask, Result
from toptheta_npu.evaluation.workers import ModelWorkers
from toptheta_npu.models import sparsify
from toptheta_npu.thresholds import ThresholdTable

Tables = dict[TableKey, ThresholdTable]
Progress = Callable[[], None]


def steps(extent: Extent) -> int:
    """Count how often `calibrate_all` and `measure_all` call their progress."""
    sequences = sum(each.sizes[-1] for each in points.passes(extent)) + len(PLACEMENTS) * extent.long_sizes[-1]
    return sequences + len(list(points.points(extent))) + len(_texts(extent))


def calibrate_all(
    workers: ModelWorkers, tokenizer: PreTrainedTokenizerBase, extent: Extent, progress: Progress
) -> Tables:
    """Calibrate every table that a point needs."""
    futures: list[Future[Any]] = []
    for wanted in sorted(points.passes(extent), key=lambda each: -len(each.watchers)):
        windows = _windows(tokenizer, extent, wanted.text, "calibration", wanted.length, wanted.sizes[-1])
        futures.append(workers.submit(partial(run_pass, wanted=wanted, windows=windows, progress=progress)))
    windows = _windows(tokenizer, extent, "python", "calibration", extent.long, extent.long_sizes[-1])
    for placement in PLACEMENTS:
        futures.append(
            workers.submit(partial(with_top_k, windows=windows, placement=placement, k=K, progress=progress))
        )
    tables: Tables = {}
    for future in futures:
        tables.update(future.result())
    return tables


def measure_all(
    workers: ModelWorkers, tokenizer: PreTrainedTokenizerBase, tables: Tables, extent: Extent, progress: Progress
) -> list[dict[str, Any]]:
    """Measure the dense methods, then every point. Each gives one row with all its labels."""
    tasks = {
        name: workers.submit(partial(_task, tokenizer=tokenizer, extent=extent, text=text, length=length))
        for name, (text, length) in _texts(extent).items()
    }

    def measure(method: Callable[[], Method], text: Text) -> Future[Result]:
        return workers.submit(lambda model: tasks[text].result().evaluate(method(), model))

    dense = {text: measure(kinds.dense, text) for text in tasks}
    results = [(point, measure(partial(_method, tables, point), point.text)) for point in points.points(extent)]
    rows = []
    for text, future in dense.items():
        rows.append({"part": "dense", "label": "dense", "text": text, **_as_json(future.result())})
        progress()
    for point, future in results:
        rows.append({**_labels(point), **_as_json(future.result())})
        progress()
    return rows


def _texts(extent: Extent) -> dict[Text, tuple[str, int]]:
    """Map each held-out text to where it comes from and to the length of its windows."""
    return {
        "python": ("python", extent.long),
        "short python": ("python", extent.short),
        "prose": ("prose", extent.long),
    }


def _task(
    model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, extent: Extent, text: str, length: int
) -> PerplexityTask:
    windows = _windows(tokenizer, extent, text, "evaluation", length, extent.windows)
    return PerplexityTask(model, windows, extent.positions)


def _windows(
    tokenizer: PreTrainedTokenizerBase, extent: Extent, text: str, split: Split, length: int, count: int
) -> Tensor:
    return windows_of(tokenizer, text, split, length, count, extent.prose_files)


def _method(tables: Tables, point: Point) -> Method:
    table = points.thresholds_of(point, tables)
    options: dict[str, Any] = {"lookup": "fitted"} if point.form == "fitted" else {}
    return Method(
        "Top-θ", point.k,
        lambda model: sparsify(model, table, k=point.k, prefill="thresholded", statistics="summary", **options),
    )  # fmt: skip


def _labels(point: Point) -> dict[str, Any]:
    return {
        "part": point.part, "label": point.label, "placement": point.key.watcher.placement, "k": point.k,
        "text": point.text, "windows": point.key.windows,
    }  # fmt: skip


def _as_json(result: Result) -> dict[str, Any]:
    fields = asdict(result)
    return {name: fields[name] for name in ("nats", "kept_over_k", "spread", "reads")}
