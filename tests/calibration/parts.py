"""Calibrators of random rows, for tests of their files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from toptheta_npu._sealed import unseal
from toptheta_npu.calibration import CalibrationSettings, Calibrator
from toptheta_npu.calibration.state import KIND, CalibrationState, Seen
from toptheta_npu.thresholds import ThresholdTable

ESTIMATORS = ("algorithm1", "pooled")
HEADS, LAYERS, LONGEST = 2, 2, 24


def rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [HEADS, LONGEST, LONGEST] of one causal sequence, and the row lengths."""
    lengths = torch.arange(1, LONGEST + 1)
    scores = torch.randn(HEADS, LONGEST, LONGEST, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(torch.arange(LONGEST) >= lengths[:, None], -math.inf), lengths


def observed(seeds: range, estimator: str = "pooled", **options: Any) -> Calibrator:
    options = {
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "k": [3, 5],
        "longest": LONGEST,
        "layer_k": [4, 0],
        "placement": "pre_softmax",
        "estimator": estimator,
        **options,
    }
    calibrator = Calibrator(CalibrationSettings(**options))
    observe(calibrator, seeds)
    return calibrator


def observe(calibrator: Calibrator, seeds: range) -> None:
    for seed in seeds:
        for layer in range(LAYERS):
            calibrator.observe(layer, *rows(seed + 100 * layer))


def finish(calibrator: Calibrator) -> ThresholdTable:
    return calibrator.finish(fingerprint="model", provenance={})


def content_of(table: ThresholdTable, path: Path) -> bytes:
    table.save(path)
    return path.read_bytes()


def make(calibrator: Calibrator | None = None, **changes: Any) -> CalibrationState:
    fields: dict[str, Any] = {"fingerprint": "model", "dtype": "float32", "run": {"vmc": "True"}, **changes}
    return CalibrationState(calibrator or observed(range(3)), **fields)


def seen_in(path: Path) -> Seen:
    """What the file of a state says of the sequences that were observed."""
    header, _ = unseal(KIND, path, path.read_bytes())
    return Seen(header["sequences"], header["tokens"], header["digest"])
