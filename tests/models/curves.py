"""A tiny model with a table, and the measurement of its error curves that several tests repeat."""

from __future__ import annotations

import functools
from typing import Any

from transformers import PreTrainedModel

from tests.models.tiny import new_model, tokens
from toptheta_npu.models import calibrate
from toptheta_npu.thresholds import ThresholdTable

TEXTS = tokens(5, 48, seed=5)
OPTIONS: dict[str, Any] = {"row_fraction": 0.5, "provenance": {"curves": "noise"}}


@functools.cache
def model() -> PreTrainedModel:
    return new_model()


@functools.cache
def table() -> ThresholdTable:
    return calibrate(
        model(), tokens(6, 48, seed=1), k=[4, 8, 16], layer_k=[0, 0], top_k_at_calibration=False, estimator="pooled"
    )
