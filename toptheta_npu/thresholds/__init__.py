"""Calibrated thresholds: one number per (k, layer, query head, row length), with their origin.

A `ThresholdTable` is made by `toptheta_npu.calibration`, kept in a safetensors file, and turned into
per-length tensors on the device of the model by its method ``at``.
"""

from __future__ import annotations

from .at_k import MeanDiscardedMassWarning, ThresholdExtrapolationWarning, ThresholdsAtK
from .fit import ThresholdFit
from .kinds import DiscardedStatistic, Estimator, LookupForm, Placement
from .table import ThresholdTable

__all__ = [
    "DiscardedStatistic",
    "Estimator",
    "LookupForm",
    "MeanDiscardedMassWarning",
    "Placement",
    "ThresholdExtrapolationWarning",
    "ThresholdFit",
    "ThresholdTable",
    "ThresholdsAtK",
]
