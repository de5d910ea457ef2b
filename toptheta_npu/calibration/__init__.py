"""Calibrates thresholds from attention scores. The caller runs the model; `Calibrator` consumes its scores."""

from __future__ import annotations

from ..thresholds.knots import MAX_LENGTH_KNOTS, bucket_of, length_knots
from .calibrator import Calibrator
from .moments import Moments
from .row_statistics import kth_largest, sample_rows
from .settings import FIRST_LAYERS_K, CalibrationSettings
from .sketch import SurvivalSketch

__all__ = [
    "FIRST_LAYERS_K",
    "MAX_LENGTH_KNOTS",
    "CalibrationSettings",
    "Calibrator",
    "Moments",
    "SurvivalSketch",
    "bucket_of",
    "kth_largest",
    "length_knots",
    "sample_rows",
]
