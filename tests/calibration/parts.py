"""Calibrators and shards of random rows, for tests of their files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from toptheta_npu.calibration import Calibrator
from toptheta_npu.calibration.shard import SeenSequence, Shard, WholeSet
from toptheta_npu.calibration.state import CalibrationState
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
        "k": [3, 5],
        "longest": LONGEST,
        "layer_k": [4, 0],
        "placement": "pre_softmax",
        "estimator": estimator,
        **options,
    }
    calibrator = Calibrator(LAYERS, HEADS, **options)
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


def assert_merged(merged: ThresholdTable, whole: ThresholdTable) -> None:
    """Averages agree to 1e-6; counters, and what comes of them alone, are the same."""
    for name in ("theta", "std"):
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name), atol=1e-6, rtol=1e-6)
    exact = ["counts", "lengths"] + ["theta"] * (whole.estimator != "algorithm1")
    exact += ["std"] * (whole.estimator == "pooled")
    for name in exact:
        assert torch.equal(getattr(merged, name), getattr(whole, name)), name


def make(calibrator: Calibrator | None = None, **changes: Any) -> CalibrationState:
    fields: dict[str, Any] = {
        "calibrator": calibrator or observed(range(3)), "fingerprint": "model", "dtype": "float32",
        "run": {"vmc": "True"}, "provenance": {"text": "noise"}, "shard": Shard(1, 3),
        "seen": [SeenSequence.of(torch.arange(length)) for length in (5, 9)], "whole": WholeSet("ab" * 32, 6),
    }  # fmt: skip
    return CalibrationState(**{**fields, **changes})


def shards(folder: Path, count: int, estimator: str = "pooled", **changes: Any) -> list[Path]:
    """Files of the shards of ``observed(range(6))``, which say that each has seen one sequence."""
    paths = []
    for index in range(count):
        calibrator = observed(range(index, 6, count), estimator)
        whole = WholeSet("cd" * 32, count)
        fields: dict[str, Any] = {"shard": Shard(index, count), "whole": whole, "seen": make().seen[:1], **changes}
        make(calibrator, **fields).save(folder / f"shard-{index}")
        paths.append(folder / f"shard-{index}")
    return paths
