"""The tables of docs/reproduction.md, from the results that were written last."""

from __future__ import annotations

from pathlib import Path

from toptheta_npu._tables import Table


def all_tables(folder: Path) -> dict[str, Table]:
    """Every table by the name of its place in the page."""
    return {}
