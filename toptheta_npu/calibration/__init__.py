"""Calibration of thresholds from attention scores: the driver runs the model, this consumes the scores."""

from __future__ import annotations

from toptheta_npu.calibration.calibrator import Calibrator
from toptheta_npu.calibration.moments import Moments
from toptheta_npu.calibration.row_statistics import kth_largest, sample_rows
from toptheta_npu.calibration.settings import FIRST_LAYERS_K, CalibrationSettings
from toptheta_npu.calibration.sketch import SketchThresholds, SurvivalSketch
from toptheta_npu.thresholds.knots import MAX_LENGTH_KNOTS, bucket_of, length_knots

__all__ = [
    "FIRST_LAYERS_K",
    "MAX_LENGTH_KNOTS",
    "CalibrationSettings",
    "Calibrator",
    "Moments",
    "SketchThresholds",
    "SurvivalSketch",
    "bucket_of",
    "kth_largest",
    "length_knots",
    "sample_rows",
]
