"""What a table predicts that its budgets lose and read, against what they do on documents of a third split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from transformers import PreTrainedModel

from benchmarks.real_model_study.results import Lines
from benchmarks.real_model_study.settings import CURVE_ROWS, Scale, environment
from benchmarks.real_model_study.texts import Windows
from toptheta_npu.evaluation.sweep import table_digest
from toptheta_npu.models import measure_budgets
from toptheta_npu.models.fingerprint.model import model_fingerprint
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.thresholds.curves import ErrorCurves


def measure(
    scale: Scale, model: PreTrainedModel, windows: Windows, table: ThresholdTable, targets: tuple[int, ...],
    file: Path, console: Console,
) -> None:  # fmt: skip
    """Measure all heads together under the budgets of a table, a line for each window; what is there stays.

    Args:
        scale: how many windows of which text.
        model: in evaluation mode.
        windows: of the texts.
        table: with error curves.
        targets: V rows that budgets aim at.
        file: of the results.
        console: says what is going on.
    """
    curves, length = table.curves, scale.parts[0].length
    assert curves is not None
    budgets = [table.budget(target_value_rows=rows) for rows in targets]
    header = {
        "model": model_fingerprint(model), "thresholds": table_digest(table), "length": length,
        "lengths": curves.lengths.tolist(), "targets": list(targets),
        "prices": [budget.price for budget in budgets], "predicted": _at(curves, [each.price for each in budgets]),
        "environment": environment(),
    }  # fmt: skip
    with Lines(file, header, ("text", "document")) as lines:
        for text, count in scale.checked.items():
            for name, tokens in zip(*windows.of(text, "check", length, count), strict=True):
                if not lines.has(text=text, document=name):
                    found = measure_budgets(model, table, [tokens], row_fraction=CURVE_ROWS)
                    lines.add({"text": text, "document": name, **_at(found, header["prices"])})
                    console.print(f"prediction, {text}: {name}")


def _at(curves: ErrorCurves, prices: list[float]) -> dict[str, list[list[float]]]:
    """Interpolate squared errors and V rows at some prices: [prices][lengths] each."""
    return {"error": _interpolated(curves, prices, curves.mean_error().numpy()),
            "value_rows": _interpolated(curves, prices, curves.mean_value_rows().numpy())}  # fmt: skip


def _interpolated(curves: ErrorCurves, prices: list[float], values: NDArray[np.float64]) -> list[list[float]]:
    known = -curves.price.log().numpy()
    columns = [np.interp(-np.log(prices), known, column) for column in values.T]
    return [[float(f"{value:.6g}") for value in row] for row in np.stack(columns, axis=1)]
