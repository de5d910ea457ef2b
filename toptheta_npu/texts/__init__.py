"""Texts for calibration: read from files, folders and data sets, tokenised, cut into windows, kept apart."""

from __future__ import annotations

from .conventions import Conventions
from .found import Sources, find_sources
from .overlap import Overlap, overlaps
from .packing import Windows, collect_windows, held_out_count, held_out_places
from .sources import Source, StoredText, read_before, was_read

__all__ = [
    "Conventions",
    "Overlap",
    "Source",
    "Sources",
    "StoredText",
    "Windows",
    "collect_windows",
    "find_sources",
    "held_out_count",
    "held_out_places",
    "overlaps",
    "read_before",
    "was_read",
]
