"""Calibrated thresholds: one number per (k, layer, query head, row length), with their origin.

A `ThresholdTable` is made by `toptheta_npu.calibration`, kept in a safetensors file, and turned into
per-length tensors on the device of the model by its method ``at``.
"""

from __future__ import annotations

from .fit import ThresholdFit
from .lookup import (
    Extrapolation,
    LookupForm,
    MeanDiscardedMassWarning,
    ThresholdExtrapolationWarning,
    ThresholdsAtK,
)
from .table import DiscardedStatistic, Estimator, Placement, ThresholdTable

__all__ = [
    "DiscardedStatistic",
    "Estimator",
    "Extrapolation",
    "LookupForm",
    "MeanDiscardedMassWarning",
    "Placement",
    "ThresholdExtrapolationWarning",
    "ThresholdFit",
    "ThresholdTable",
    "ThresholdsAtK",
]
