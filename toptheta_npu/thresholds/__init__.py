"""Calibrated thresholds: one number per (k, layer, query head, row length), with their origin.

A `ThresholdTable` is made by `toptheta_npu.calibration`, kept in a safetensors file, and turned into
per-length tensors on the device of the model by its method ``at``.
"""

from __future__ import annotations

from toptheta_npu.thresholds.fit import ThresholdFit
from toptheta_npu.thresholds.lookup import (
    Extrapolation,
    MeanDiscardedMassWarning,
    ThresholdExtrapolationWarning,
    ThresholdsAtK,
)
from toptheta_npu.thresholds.table import DiscardedStatistic, Estimator, Placement, ThresholdTable

__all__ = [
    "DiscardedStatistic",
    "Estimator",
    "Extrapolation",
    "MeanDiscardedMassWarning",
    "Placement",
    "ThresholdExtrapolationWarning",
    "ThresholdFit",
    "ThresholdTable",
    "ThresholdsAtK",
]
