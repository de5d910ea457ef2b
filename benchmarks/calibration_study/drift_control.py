"""Does drift control bring k̃ back to k on text unlike the calibration text, and at which price?

The embedded model decodes 8 windows of Python source and 8 of English prose, one token after the other, by thresholds
that were calibrated on the one and on the other, with drift control and without.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor
from transformers import LlamaForCausalLM, StaticCache

from benchmarks.calibration_study.texts import windows_of
from benchmarks.tables import Goal
from toptheta_npu._tables import Table
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation.methods.method import DENSER_LAYERS
from toptheta_npu.models import DriftControl, LayerStatistics, calibrate, sparsify
from toptheta_npu.models.sparse.histogram import Histogram
from toptheta_npu.thresholds import ThresholdTable

LENGTH, STEPS, SETTLED = 2560, 512, 256
TEXTS = ("python", "english")
_TEXT_NAMES = {"python": "python", "english": "prose"}
PLACEMENTS = ("pre_softmax", "post_softmax")
KS = (32, 64)


class Trial:
    """The windows of one text, with their prefixes and with what dense attention makes of them."""

    def __init__(self, model: LlamaForCausalLM, windows: Tensor) -> None:
        self._model = model
        self._windows = windows
        prefix = LENGTH - STEPS - 1
        self._cache = StaticCache(config=model.config, max_cache_len=LENGTH)
        model(windows[:, :prefix], past_key_values=self._cache, logits_to_keep=1)
        dense = [model(window[None, :-1], logits_to_keep=STEPS).logits[0] for window in windows]
        self.dense_nats = self._nats(torch.stack(dense))

    def run(self, table: ThresholdTable, k: int, control: DriftControl | None) -> dict[str, Any]:
        """Decode the last tokens of all windows together."""
        cache, model = copy.deepcopy(self._cache), self._model
        with sparsify(model, table, k=k, drift_control=control, statistics=True) as recording:
            logits = [
                model(self._windows[:, at : at + 1], past_key_values=cache).logits[:, 0]
                for at in range(LENGTH - STEPS - 1, LENGTH - 1)
            ]
            layers = recording.statistics()
        nats = self._nats(torch.stack(logits, dim=1))
        changes = 100 * ((nats - self.dense_nats).exp() - 1)
        total = 100 * ((nats.mean() - self.dense_nats.mean()).exp() - 1)
        return {
            "perplexity": nats.mean().exp().item(),
            "change_percent": total.item(),
            "standard_error": (changes.std() / len(changes) ** 0.5).item(),
            "nats": nats.tolist(),
            "after_256_steps": self._kept(layers, table, k, slice(SETTLED, None)),
            "all_steps": self._kept(layers, table, k, slice(None)),
        }

    def _nats(self, logits: Tensor) -> Tensor:
        """Compute the mean negative log-likelihood of each window in nats, [windows]."""
        target = self._windows[:, -STEPS:]
        return F.cross_entropy(logits.float().transpose(1, 2), target, reduction="none").mean(1)

    def _kept(self, layers: list[LayerStatistics], table: ThresholdTable, k: int, steps: slice) -> dict[str, Any]:
        """Compute k̃/k and the V rows of some steps in layers from 2 on. Give the mean k̃/k of the first two too."""
        parts = [self._part(layer, steps) for layer in layers]
        targets = table.layer_targets(k)
        ratios = [part.kept.view(-1, len(self._windows), part.kept.shape[-1]) / target
                  for part, target in zip(parts, targets, strict=True)]  # fmt: skip
        of_layers = torch.stack(ratios[DENSER_LAYERS:], dim=2)  # steps, windows, layers, heads
        heads, windows = of_layers.mean((0, 1)), of_layers.mean((0, 2, 3))
        return {
            "kept_over_k": of_layers.mean().item(),
            "kept_over_k_first_layers": torch.stack(ratios[:DENSER_LAYERS]).mean().item(),
            "heads": [heads.min().item(), heads.max().item()],
            "windows": [windows.min().item(), windows.max().item()],
            "reads": _reads(parts[DENSER_LAYERS:]),
            "value_rows_p95_without": self._p95_without(parts[DENSER_LAYERS:]),
        }

    def _p95_without(self, layers: Sequence[LayerStatistics]) -> list[float]:
        """Compute the p95 of the V rows without each of the windows."""
        count = len(self._windows)
        rows = [layer.value_rows.unflatten(0, (-1, count)) for layer in layers]
        others = [[window for window in range(count) if window != left_out] for left_out in range(count)]
        return [_p95(torch.cat([each[:, kept].flatten() for each in rows])) for kept in others]

    def _part(self, layer: LayerStatistics, steps: slice) -> LayerStatistics:
        def cut(rows: Tensor) -> Tensor:
            return rows.unflatten(0, (STEPS, len(self._windows)))[steps].flatten(0, 1)

        return LayerStatistics(*(cut(getattr(layer, name)) for name in LayerStatistics.__dataclass_fields__))


def _reads(layers: Sequence[LayerStatistics]) -> dict[str, float]:
    """Summarise what the rows read, by the names of `toptheta_npu.evaluation.reads.Reads`."""
    kept, value_rows, keys, empty = (
        torch.cat([getattr(layer, name).flatten() for layer in layers])
        for name in ("kept", "value_rows", "keys", "empty")
    )
    means = {"kept_mean": kept, "value_rows_mean": value_rows, "keys_mean": keys, "empty_share": empty}
    return {name: values.float().mean().item() for name, values in means.items()} | {
        "value_rows_p95": _p95(value_rows), "value_rows_max": float(value_rows.max()),
    }  # fmt: skip


def goals(results: list[dict[str, Any]]) -> list[Goal]:
    """List what drift control has to reach out of domain, against the thresholds in domain without it."""
    found = []
    by_case = {(row["text"], row["calibrated_on"], row["placement"], row["k"], row["drift_control"]): row
               for row in results}  # fmt: skip
    for (text, source, placement, k, controlled), row in by_case.items():
        if text == source or not controlled:
            continue
        name = f"{text} by thresholds of {source}, {placement}, k = {k}: "
        home = by_case[text, text, placement, k, False]
        part, reads = row["after_256_steps"], row["after_256_steps"]["reads"]
        for unit, away in (("heads", 0.1), ("windows", 0.05)):
            farthest = max(part[unit], key=lambda ratio: abs(ratio - 1))
            found.append(Goal(f"{name}distance of k̃/k from 1, {unit}", abs(farthest - 1), away))
        for steps in ("after_256_steps", "all_steps"):
            raised = row[steps]["reads"]["value_rows_p95"] / home[steps]["reads"]["value_rows_p95"]
            pairs = zip(*(each[steps]["value_rows_p95_without"] for each in (row, home)), strict=True)
            without = [our / their for our, their in pairs]
            title = f"{name}p95 of V rows over that in domain, {steps.replace('_', ' ')}"
            found.append(Goal(title, raised, 1.0, error=_jackknife_error(without)))
        assert reads["value_rows_p95"] > 0
        more = row["change_percent"] - home["change_percent"]
        title = f"{name}percentage points of perplexity above in domain"
        found.append(Goal(title, more, 0.1, error=_paired_error(row["nats"], home["nats"])))
    return found


def _paired_error(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Compute the standard error of the difference of two perplexities of the same windows, in percent."""
    differences = [our - their for our, their in zip(ours, theirs, strict=True)]
    return 100 * statistics.stdev(differences) / math.sqrt(len(differences))


def _jackknife_error(without: Sequence[float]) -> float:
    """Compute the standard error of a figure from its values without each of the windows."""
    return math.sqrt((len(without) - 1) * statistics.pvariance(without))


def _p95(values: Tensor) -> float:
    return float(Histogram.of(values).percentile(0.95))


def english_thresholds(model: LlamaForCausalLM, texts: Tensor, placement: str) -> ThresholdTable:
    return calibrate(
        model, texts, k=(32, 64, 128, 256, 512), placement=placement, estimator="pooled",  # type: ignore[arg-type]
        row_fraction=0.25, top_k_at_calibration=False,
    )  # fmt: skip


def measure(
    console: Console, prose_files: Sequence[Path] = (), windows: int = 8, calibration: int = 16
) -> dict[str, Any]:
    """Decode by all thresholds, in domain and out of it, with and without control.

    Args:
        prose_files: other prose than that of the running Python.
        windows: of each text.
        calibration: windows of prose to calibrate on.
    """
    model, tokenizer = load_tiny_llama()
    control, results = DriftControl(), []
    prose = windows_of(tokenizer, "prose", "calibration", LENGTH, calibration, prose_files)
    with torch.inference_mode():
        tables = {("python", placement): load_tiny_llama_thresholds(placement) for placement in PLACEMENTS}
        tables |= {("english", placement): english_thresholds(model, prose, placement) for placement in PLACEMENTS}
        trials = {
            "python": Trial(model, windows_of(tokenizer, "python", "evaluation", LENGTH, windows)),
            "english": Trial(model, windows_of(tokenizer, "prose", "evaluation", LENGTH, windows, prose_files)),
        }
        cases = [(text, source, placement, k, controlled) for placement in PLACEMENTS for k in KS for text in TEXTS
                 for source in TEXTS for controlled in (False, True)]  # fmt: skip
        for text, source, placement, k, controlled in cases:
            case = {"text": text, "calibrated_on": source, "placement": placement, "k": k, "drift_control": controlled}
            results.append(case | trials[text].run(tables[source, placement], k, control if controlled else None))
            console.print(f"drift control: {len(results)} of {len(cases)} cases")
    settings = {
        "windows": windows, "length": LENGTH, "decode_steps": STEPS, "calibration_windows_of_prose": calibration,
        "drift_control": asdict(control), "sdc": "exact", "vmc": True,
        "dense_perplexity": {text: trial.dense_nats.mean().exp().item() for text, trial in trials.items()},
    }  # fmt: skip
    return {"settings": settings, "results": results}


def worst(goals: Iterable[Goal]) -> list[Goal]:
    """Choose of each kind of goal the one that is farthest from being met, over all texts, thresholds and k."""
    kinds: dict[str, Goal] = {}
    for goal in goals:
        kind = goal.name.split(": ")[1]
        if kind not in kinds or goal.value > kinds[kind].value:
            kinds[kind] = replace(goal, name=kind)
    return list(kinds.values())


def as_table(results: list[dict[str, Any]], k: int = 64) -> Table:
    """Tabulate for a page what is kept and what it costs after the first steps at one k."""
    cells = []
    for row in results:
        home = row["text"] == row["calibrated_on"]
        if row["k"] != k or (home and row["drift_control"]):
            continue
        part, reads = row["after_256_steps"], row["after_256_steps"]["reads"]
        cells.append([
            row["placement"].replace("_", "-"), *(_TEXT_NAMES[row[name]] for name in ("calibrated_on", "text")),
            "yes" if row["drift_control"] else "no", f"{part['kept_over_k']:.2f}",
            *("{:.2f} to {:.2f}".format(*part[unit]) for unit in ("windows", "heads")),
            f"{reads['value_rows_mean']:.0f}", f"{reads['value_rows_p95']:.0f}",
            f"{row['change_percent']:+.2f} ± {row['standard_error']:.2f} %",
        ])  # fmt: skip
    head = ("placement", "calibrated on", "used on", "control", "k̃/k", "of windows", "of heads", "V rows: mean", "p95",
            "perplexity against dense")  # fmt: skip
    return Table(f"Drift control, k = {k}", head, cells)
