"""What calibration costs, in plain forward passes over the same windows, and how many windows it needs.

CPU time of all threads is what is compared, so that it hardly matters what else runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.real_model_study import results
from benchmarks.real_model_study.goals import Goal
from benchmarks.real_model_study.results import Lines
from benchmarks.real_model_study.settings import Costs, Scale, environment
from benchmarks.real_model_study.texts import Windows, digest
from toptheta_npu._tables import Table
from toptheta_npu.models import calibrate
from toptheta_npu.models.calibration.kept_rows import count_kept
from toptheta_npu.models.fingerprint.model import model_fingerprint
from toptheta_npu.models.hook.architecture import num_layers
from toptheta_npu.texts.packing import held_out_count
from toptheta_npu.thresholds import ThresholdTable

FILE = "calibration_cost.jsonl"
#: What `toptheta calibrate` does by default: windows, and share of the rows.
_SEQUENCES, _SHARE = 64, 1 / 4
_THRESHOLDS, _CHECK, _NEEDED = "thresholds", "held-out check", "windows"
#: Share of the rows behind thresholds whose number of windows is in question, and behind what they keep.
_SHARE_OF_NEEDED = 1 / 8


def measure(costs: Costs, scale: Scale, model: PreTrainedModel, windows: Windows, file: Path, console: Console) -> None:
    """Measure what was not measured yet, a line for each figure."""
    text = scale.parts[0].text
    tokens = windows.of(text, "thresholds", costs.length, max(costs.needed))[1]
    held_out = windows.of(text, "check", costs.length, costs.checked)[1]
    header = {
        "model": model_fingerprint(model), "length": costs.length, "windows": digest(tokens), "k": list(scale.ks),
        "environment": environment(), "timed": costs.timed,
    }  # fmt: skip
    few, unseen = tokens[: costs.timed], held_out[: costs.timed]
    table: list[ThresholdTable] = []

    def made() -> ThresholdTable:
        if not table:
            table.append(_thresholds(model, scale, few, costs.fractions[-1]))
        return table[0]

    def passes(work: Callable[[], object], of: Tensor) -> dict[str, Any]:
        """Time work and plain passes in turn, and take the median of the ratios."""
        ratios = [_seconds(work) / _seconds(lambda: _plain(model, of)) for _ in range(costs.repeats)]
        return {"passes": round(statistics.median(ratios), 3)}

    figures: dict[tuple[str, float], Callable[[], dict[str, Any]]] = {
        **{(_THRESHOLDS, share): lambda share=share: passes(lambda: _thresholds(model, scale, few, share), few)  # type: ignore[misc]
           for share in costs.fractions},
        (_CHECK, 1.0): lambda: passes(lambda: count_kept(model, made(), unseen), unseen),
        **{(_NEEDED, float(count)): lambda count=count: _kept_on(model, scale, tokens[:count], held_out)  # type: ignore[misc]
           for count in costs.needed},
    }  # fmt: skip
    with Lines(file, header, ("what", "value")) as lines:
        for (what, value), figure in figures.items():
            if not lines.has(what=what, value=value):
                lines.add({"what": what, "value": value, **figure()})
                console.print(f"calibration, {what}, {value:g}")


def _thresholds(model: PreTrainedModel, scale: Scale, tokens: Tensor, share: float) -> ThresholdTable:
    layer_k = [scale.first_layers_k] * 2 + [0] * (num_layers(model) - 2)
    return calibrate(
        model, tokens, k=scale.ks, estimator="pooled", layer_k=layer_k, row_fraction=share,
        top_k_at_calibration=False, placement="pre_softmax",
    )  # fmt: skip


def _plain(model: PreTrainedModel, tokens: Tensor) -> None:
    with torch.no_grad():
        for window in tokens:
            model.base_model(input_ids=window[None], use_cache=False)


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _kept_on(model: PreTrainedModel, scale: Scale, tokens: Tensor, held_out: Tensor) -> dict[str, Any]:
    """Calibrate, and give the share of layers and k whose k~/k on held-out windows is within 5 %, and the mean."""
    table = _thresholds(model, scale, tokens, _SHARE_OF_NEEDED)
    ratios = []
    for layer, rows in count_kept(model, table, held_out, row_fraction=_SHARE_OF_NEEDED).items():
        for kept, k in zip(rows.kept, table.k.tolist(), strict=True):
            aim = table.layer_targets(k)[layer]
            if aim == k and bool((sparse := rows.lengths > aim).any()):
                ratios.append(float(kept[sparse].double().mean()) / aim)
    found = torch.tensor(ratios)
    return {
        "within": round(float(((found - 1).abs() <= 0.05).double().mean()), 4),
        "mean": round(float(found.mean()), 4),
    }


def _figures(folder: Path) -> dict[tuple[str, float], dict[str, Any]]:
    return {(line["what"], line["value"]): line for line in results.read(folder / FILE)[1]}


def passes_table(folder: Path) -> Table | None:
    """Tabulate costs in forward passes."""
    found = [line for line in _figures(folder).values() if "passes" in line]
    rows = [[line["what"], f"1/{1 / line['value']:g}" if line["value"] < 1 else "all", f"{line['passes']:.2f}"]
            for line in found]  # fmt: skip
    return Table("Cost of calibration", ("", "rows", "forward passes"), rows) if rows else None


def windows_table(folder: Path) -> Table | None:
    """Tabulate how near to k thresholds of so many windows keep."""
    found = [line for line in _figures(folder).values() if line["what"] == _NEEDED]
    rows = [[f"{line['value']:.0f}", f"{100 * line['within']:.0f} %", f"{line['mean']:.3f}"] for line in found]
    return Table("Windows", ("windows", "layers and k with k̃/k within 5 %", "mean k̃/k"), rows) if rows else None


def goals(folder: Path, missing: str) -> list[Goal]:
    """Compare with what was asked what `toptheta calibrate` costs by default, per window that makes thresholds."""
    found = _figures(folder)
    checked = held_out_count(_SEQUENCES) / _SEQUENCES
    asked = (
        (
            "calibration with its held-out check, default rows",
            {(_THRESHOLDS, _SHARE): 1.0, (_CHECK, 1.0): checked},
            2.0,
        ),
    )
    goals_of = []
    for name, weights, limit in asked:
        known = all(key in found for key in weights)
        total = sum(weight * found[key]["passes"] for key, weight in weights.items()) if known else 0.0
        figure = f"{total:.2f} forward passes" if known else missing
        goals_of.append(Goal(name, figure, f"≤ {limit:.1f}", total <= limit if known else None))
    return goals_of
