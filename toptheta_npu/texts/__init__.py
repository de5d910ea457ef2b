"""Texts for calibration and evaluation: read from files and folders, tokenised, cut into windows."""

from __future__ import annotations

from .conventions import Conventions
from .packing import Windows, collect_windows, digest_of, held_out_count, held_out_places
from .sources import PlainText, Source, Sources, StoredText, find_sources

__all__ = [
    "Conventions",
    "PlainText",
    "Source",
    "Sources",
    "StoredText",
    "Windows",
    "collect_windows",
    "digest_of",
    "find_sources",
    "held_out_count",
    "held_out_places",
]
