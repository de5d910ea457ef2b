"""Perplexity of the last tokens of long windows under every arm, a line for each window and arm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel

from benchmarks.real_model_study.results import Lines
from benchmarks.real_model_study.settings import OTHERS, Arm, Part, environment
from benchmarks.real_model_study.texts import Windows, digest
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.sweep import table_digest
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.models.fingerprint.model import model_fingerprint
from toptheta_npu.thresholds import ThresholdTable

#: Enough for the keys and values of one window.
_PREFIX_BYTES = 2**33


def measure(
    part: Part, model: PreTrainedModel, windows: Windows, table: ThresholdTable, file: Path, console: Console
) -> None:
    """Measure what a part lacks, window after window with all its arms.

    Args:
        part: what to measure.
        model: in evaluation mode.
        windows: of the texts.
        table: the thresholds of this length.
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
        methods = {arm.name: method_of(arm, table) for arm in part.arms}

        for number, window in enumerate(tokens):
            if not missing[number]:
                continue
            started = time.perf_counter()
            task = PerplexityTask(model, window[None], part.positions, _PREFIX_BYTES)
            console.print(f"{part.name}, window {number + 1}: prefix, {time.perf_counter() - started:.1f} s")
            for arm in missing[number]:
                started = time.perf_counter()
                found = task.measure(methods[arm.name], model)
                lines.add({"window": number, "arm": arm.name, **_figures(found)})
                console.print(f"{part.name}, window {number + 1}: {arm.name}, {time.perf_counter() - started:.1f} s")
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


def method_of(arm: Arm, table: ThresholdTable) -> Method:
    """Make the method of an arm; in the first layers, methods of others keep the k of the thresholds there."""
    if arm.k is None:
        return make_method(arm.method)
    of_others = arm.method in {other.method for other in OTHERS}
    targets = [least or arm.k for least in table.layer_k] if of_others else table.layer_targets(arm.k)
    return make_method(arm.method, arm.k, table, targets)
