"""Which error a budget should be chosen by: the one that orders random budgets as the loss of the model does.

Every criterion is a squared error of what a layer's attention adds to the residual stream, relative to something else.
The predictions are sums over heads, each looked at alone; the loss is the Kullback-Leibler divergence from the dense
model with all layers thresholded. Both are of text that calibrates, and not of what the study reports on.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.real_model_study import results
from benchmarks.real_model_study.analysis import bootstrap
from benchmarks.real_model_study.results import Lines
from benchmarks.real_model_study.settings import CURVE_ROWS, SEED, Scale, environment
from benchmarks.real_model_study.texts import Windows, digest
from toptheta_npu._tables import Table
from toptheta_npu.calibration.error_sums import ErrorSums
from toptheta_npu.evaluation.sweep import table_digest
from toptheta_npu.evaluation.tasks.prefix import Prefix, run_prefix
from toptheta_npu.models import sparsify
from toptheta_npu.models.calibration.error_job import error_settings
from toptheta_npu.models.calibration.error_watch import ErrorWatch
from toptheta_npu.models.calibration.observe import run_texts
from toptheta_npu.models.calibration.texts import CalibrationTexts
from toptheta_npu.models.fingerprint.model import model_fingerprint
from toptheta_npu.models.hook.residual import residual_stream
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.thresholds.budget import aims_of, head_k_of, levels_at, path_of_prices

#: Budgets that are drawn, and the deviation of the logarithm by which the error of a head, and of a layer, is off.
BUDGETS, DEVIATION = 20, 1.5
#: Windows of the text.
_WINDOWS = 4
#: Of a dozen budgets from the fewest to the most elements, those that the drawn ones are as large as.
_SIZES = (5, 6, 7)
_LOSS = "loss"
#: The files of results, and their models.
REAL, EMBEDDED = "criteria.jsonl", "criteria_embedded.jsonl"
FILES = {"SmolLM2-135M": REAL, "embedded model": EMBEDDED}


class _BeforeLayer(ErrorWatch):
    def held_against(self, before: Tensor, added: Tensor) -> Tensor:
        return before


class _OwnOutput(ErrorWatch):
    def held_against(self, before: Tensor, added: Tensor) -> Tensor:
        return added


CRITERIA: dict[str, type[ErrorWatch]] = {
    "the stream behind the layer": ErrorWatch,
    "the stream before the layer": _BeforeLayer,
    "what the layer adds": _OwnOutput,
}


def measure(
    scale: Scale, model: PreTrainedModel, windows: Windows, table: ThresholdTable, file: Path, console: Console
) -> None:
    """Predict and measure what drawn budgets lose, a line for each budget and criterion.

    Args:
        scale: the first part's text and length count.
        model: in evaluation mode.
        windows: of the texts.
        table: the thresholds.
        file: of the results.
        console: says what is going on.
    """
    part = scale.parts[0]
    count = min(_WINDOWS, scale.splits["curves"])
    texts = windows.of(part.text, "curves", part.length, count)[1]
    header = {
        "model": model_fingerprint(model), "thresholds": table_digest(table), "windows": digest(texts),
        "environment": environment(),
    }  # fmt: skip
    with Lines(file, header, ("what", "budget")) as lines:
        wanted = [(what, number) for what in (*CRITERIA, _LOSS) for number in range(BUDGETS)]
        missing = [(what, number) for what, number in wanted if not lines.has(what=what, budget=number)]
        if not missing:
            return
        errors = {name: _errors(model, table, texts, watch) for name, watch in CRITERIA.items()}
        drawn = draw(errors[next(iter(CRITERIA))], table)
        prefixes = [_dense(model, window, part.positions) for window in texts]
        for what, number in missing:
            levels = drawn[number]
            if what == _LOSS:
                value = _loss(model, table, levels, prefixes)
                console.print(f"criteria, loss of budget {number}: {value:.3g} nats")
            else:
                value = float(errors[what].gather(0, levels[None]).sum())
            lines.add({"what": what, "budget": number, "value": float(f"{value:.6g}")})


def _errors(model: PreTrainedModel, table: ThresholdTable, texts: Tensor, watch: type[ErrorWatch]) -> Tensor:
    """Measure the squared error of every head at every level, alone: float64 [1 + K, L, Hq]."""
    length = texts.shape[1]
    settings = error_settings(model, table, [length], sdc="exact", vmc=True, row_fraction=CURVE_ROWS, seed=SEED)
    sums = ErrorSums(settings)
    with residual_stream(model) as stream:
        watched = watch(table, sums, stream, None)
        run_texts(model, CalibrationTexts(model, texts, None, 0, int(table.k[0])), settings.rows, watched.rule, None)
    return sums.head_errors()[..., -1].double().cummin(dim=0).values


def draw(errors: Tensor, table: ThresholdTable) -> list[Tensor]:
    """Draw budgets of some sizes: each is the best one for errors that are off at random, levels int64 [L, Hq].

    Args:
        errors: [1 + K, L, Hq].
        table: whose k they may have.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama_thresholds
        >>> table = load_tiny_llama_thresholds("pre_softmax")
        >>> errors = torch.linspace(1.0, 0.0, 1 + len(table.k), dtype=torch.float64)[:, None, None].expand(-1, 6, 8)
        >>> drawn = draw(errors, table)
        >>> len(drawn), drawn[0].shape, drawn[0].equal(drawn[3])
        (20, torch.Size([6, 8]), False)
    """
    generator, aims = torch.Generator().manual_seed(SEED), aims_of(table)
    drawn = []
    for number in range(BUDGETS):
        by_head, by_layer = (torch.randn(errors.shape[1], heads, generator=generator) for heads in (errors.shape[2], 1))
        off = errors * (DEVIATION * (by_head + by_layer)).exp()
        prices = path_of_prices(off, aims, 12)
        drawn.append(levels_at(off, aims, prices[min(_SIZES[number % len(_SIZES)], len(prices) - 1)]))
    return drawn


def _dense(model: PreTrainedModel, window: Tensor, positions: int) -> tuple[Prefix, Tensor, Tensor]:
    """Attend densely: what comes before the last positions, these, and the logarithms of their probabilities."""
    with torch.inference_mode():
        prefix = run_prefix(model, window[:-positions])
        return prefix, window[-positions:], _log_probabilities(model, prefix, window[-positions:])


def _log_probabilities(model: PreTrainedModel, prefix: Prefix, tokens: Tensor) -> Tensor:
    logits: Tensor = model(tokens[None], past_key_values=prefix.to_continue()).logits[0]
    return logits.float().log_softmax(-1)


def _loss(
    model: PreTrainedModel, table: ThresholdTable, levels: Tensor, prefixes: list[tuple[Prefix, Tensor, Tensor]]
) -> float:
    """Measure the mean divergence from the dense model."""
    head_k = head_k_of(aims_of(table), levels)
    found = []
    with torch.inference_mode(), sparsify(model, table, head_k=head_k, prefill="thresholded"):
        for prefix, tokens, dense in prefixes:
            off = _log_probabilities(model, prefix, tokens)
            found.append(float(F.kl_div(off, dense, log_target=True, reduction="batchmean")))
    return sum(found) / len(found)


def table(folder: Path) -> Table | None:
    """Tabulate how well each criterion orders the budgets of each model; None without results."""
    by_model = {name: found for name, file in FILES.items() if (found := _correlations(folder / file))}
    rows = [[name, *(found[name] for found in by_model.values())] for name in CRITERIA]
    columns = ("error relative to", *(f"rank correlation, {name}" for name in by_model))
    return Table("Criteria", columns, rows) if by_model else None


def _correlations(file: Path) -> dict[str, str]:
    """Correlate what each criterion predicts with the loss; empty as long as a budget is missing."""
    _, lines = results.read(file)
    found = {(line["what"], line["budget"]): line["value"] for line in lines}
    if len(found) < BUDGETS * (len(CRITERIA) + 1):
        return {}
    values = {what: np.array([found[what, number] for number in range(BUDGETS)]) for what in (*CRITERIA, _LOSS)}

    def correlation(chosen: NDArray[np.int64], name: str) -> float:
        return float(stats.spearmanr(values[name][chosen], values[_LOSS][chosen])[0])

    return {name: bootstrap(partial(correlation, name=name), BUDGETS).text() for name in CRITERIA}
