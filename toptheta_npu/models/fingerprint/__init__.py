"""Which model a table of thresholds belongs to: the same answer from the model in memory and from its folder."""

from __future__ import annotations

from .model import check_table, folder_fingerprint, model_fingerprint

__all__ = ["check_table", "folder_fingerprint", "model_fingerprint"]
