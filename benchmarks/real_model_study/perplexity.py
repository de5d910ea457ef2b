"""Perplexity of the last tokens of long windows under every arm, a line for each window and arm."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.real_model_study.results import Lines
from benchmarks.real_model_study.settings import Arm, Part, environment
from benchmarks.real_model_study.texts import Windows, digest
from toptheta_npu._files import write_atomically
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.methods import kinds
from toptheta_npu.evaluation.methods.matching import wanted_value_rows
from toptheta_npu.evaluation.methods.method import DENSER_LAYERS, KEYS_OF_VALUES, Method
from toptheta_npu.evaluation.methods.names import parse_method
from toptheta_npu.evaluation.methods.spec import make_method, matched_method
from toptheta_npu.evaluation.reads import Reads
from toptheta_npu.evaluation.sweep import table_digest
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.evaluation.workers import ModelWorkers
from toptheta_npu.models.fingerprint.model import model_fingerprint
from toptheta_npu.models.hook.architecture import num_layers
from toptheta_npu.thresholds import ThresholdTable

#: Enough for the keys and values of one window.
_PREFIX_BYTES = 2**33
#: Windows of the split "check" on which methods without a k are set.
_MATCHING_WINDOWS = 2
#: The k that matched methods carry in their name, which is not shown.
_NAMED = 1


def measure(
    part: Part, model: PreTrainedModel, windows: Windows, table: ThresholdTable, folder: Path, file: Path,
    console: Console,
) -> None:  # fmt: skip
    """Measure what a part lacks: a window on each core, with all its arms.

    Args:
        part: what to measure.
        model: in evaluation mode.
        windows: of the texts.
        table: the thresholds of this length.
        folder: for what methods without a k were set to.
        file: of the results.
        console: says what is going on.
    """
    names, tokens = windows.of(part.text, "evaluation", part.length, part.windows)
    header = {
        "model": model_fingerprint(model), "thresholds": table_digest(table), "text": part.text, "length": part.length,
        "positions": part.positions, "windows": digest(tokens), "documents": names, "environment": environment(),
    }  # fmt: skip
    with Lines(file, header, ("window", "arm")) as lines:
        missing = {
            number: [arm for arm in part.arms if not lines.has(window=number, arm=arm.name)]
            for number in range(len(tokens))
        }
        wanted = [arm for arm in part.arms if any(arm in arms for arms in missing.values())]
        methods = methods_of(wanted, part, model, windows, table, folder / f"matched_{part.name}.json")

        def run(number: int, window: Tensor, network: PreTrainedModel) -> None:
            started = time.perf_counter()
            task = PerplexityTask(network, window[None], part.positions, _PREFIX_BYTES)
            console.print(f"{part.name}, window {number + 1}: prefix, {time.perf_counter() - started:.1f} s")
            for arm in missing[number]:
                workers.check()
                started = time.perf_counter()
                found = task.measure(methods[arm.name], network)
                lines.add({"window": number, "arm": arm.name, **_figures(found)})
                console.print(f"{part.name}, window {number + 1}: {arm.name}, {time.perf_counter() - started:.1f} s")

        with ModelWorkers(model) as workers:
            for done in [workers.submit(partial(run, number, tokens[number])) for number in missing if missing[number]]:
                done.result()
        lines.sort()


def _figures(found: Measurement) -> dict[str, Any]:
    reads = found.reads_all
    return {
        "nats": round(found.scores[0], 8), "value_rows": round(reads.value_rows_mean, 3),
        "value_rows_p95": round(reads.value_rows_p95, 3),
        "kept": round(reads.kept_mean, 3), "keys": round(reads.keys_mean, 3),
        "key_rows": round(reads.key_rows_mean or 0.0, 3),
        "kept_over_target": None if reads.kept_over_target is None else round(reads.kept_over_target, 5),
    }  # fmt: skip


def methods_of(
    arms: list[Arm], part: Part, model: PreTrainedModel, windows: Windows, table: ThresholdTable, file: Path
) -> dict[str, Method]:
    """Make the methods of arms; what those without a k are set to is kept in ``file``, of whose thresholds it knows."""
    found = {arm.name: own_method(arm, table) for arm in arms if arm.like is None}
    rivals = [arm for arm in arms if arm.like is not None]
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if kept.get("thresholds") != table_digest(table):
        kept = {"thresholds": table_digest(table)}
    if lacking := [arm for arm in rivals if arm.name not in kept]:
        matching = _Matching(part, model, windows, table)
        for arm in lacking:
            kept[arm.name] = matching.settings(arm)
            write_atomically(file, json.dumps(kept))
    return found | {arm.name: _set(arm, kept[arm.name], table) for arm in rivals}


def own_method(arm: Arm, table: ThresholdTable) -> Method:
    """Make the method of an arm that reads what it reads whatever others do."""
    targets = list(table.layer_k) if arm.k is None else table.layer_targets(arm.k)
    return make_method(parse_method(arm.method), arm.k, table, targets)


class _Matching:
    """Sets methods without a k so that they read as many bytes as an arm, on windows that nothing is scored on."""

    def __init__(self, part: Part, model: PreTrainedModel, windows: Windows, table: ThresholdTable) -> None:
        self._model, self._table = model, table
        count = min(_MATCHING_WINDOWS, part.windows)
        self._windows: Tensor = windows.of(part.text, "check", part.length, count)[1]
        self._task = PerplexityTask(model, self._windows, part.positions, _PREFIX_BYTES)
        self._known: dict[str, Reads] = {}

    def settings(self, arm: Arm) -> dict[str, float]:
        """Find what a method is set to."""
        target = self._target(str(arm.like))
        if arm.method == "last-k":
            # it reads no other K rows than those of its V rows, so that it has more of both
            return {"rows": round(wanted_value_rows(target, KEYS_OF_VALUES))}
        method = matched_method(
            parse_method(arm.method), _NAMED, target, self._model, self._windows, list(self._table.layer_k)
        )
        return dict(method.settings)

    def _target(self, name: str) -> Reads:
        """Give what the layers from 2 on may read, so that all layers together read what the other method reads.

        The first layers of the methods here are Top-k with the least k of these layers.
        """
        if name not in self._known:
            reads = self._task.measure(own_method(Arm(name), self._table), self._model)
            layers, later = num_layers(self._model), num_layers(self._model) - DENSER_LAYERS
            first = self._first_layers()
            rows = (layers * reads.reads_all.value_rows_mean - DENSER_LAYERS * first) / later
            self._known[name] = replace(reads.reads, value_rows_mean=max(1.0, rows))
        return self._known[name]

    def _first_layers(self) -> float:
        if "" not in self._known:
            least = self._table.layer_targets(int(self._table.k[0]))
            found = self._task.measure(kinds.top_k(_NAMED, least), self._model)
            rows = sum(layer.reads.value_rows_mean for layer in found.layers[:DENSER_LAYERS]) / DENSER_LAYERS
            self._known[""] = replace(found.reads, value_rows_mean=rows)
        return self._known[""].value_rows_mean


def _set(arm: Arm, settings: Mapping[str, float], table: ThresholdTable) -> Method:
    """Make a matched method again from what was found."""
    targets = list(table.layer_k)
    if arm.method == "last-k":
        return kinds.last_k(_NAMED, int(settings["rows"]), targets)
    if arm.method == "pages":
        return kinds.pages(_NAMED, int(settings["count"]), targets)
    if arm.method == "blasst":
        return kinds.blasst(_NAMED, settings["scale_factor"], targets)
    raise TopThetaValueError("arm", "last-k, pages or blasst", arm.method)
