"""Identify the model that a table of thresholds belongs to, in memory or from its folder."""

from __future__ import annotations

from .model import check_table, folder_fingerprint, model_fingerprint

__all__ = ["check_table", "folder_fingerprint", "model_fingerprint"]
