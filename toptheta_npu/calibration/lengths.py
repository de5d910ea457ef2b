"""Where the row lengths of a calibration fall: the knots of the table and the bucket of a row."""

from __future__ import annotations

from toptheta_npu.thresholds.knots import MAX_LENGTH_KNOTS, bucket_of, length_knots

__all__ = ["MAX_LENGTH_KNOTS", "bucket_of", "length_knots"]
