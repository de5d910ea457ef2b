"""Tables that benchmarks print for the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toptheta_npu._tables import Table


def show(*tables: Table) -> None:
    """Print tables as Markdown, as the pages hold them."""
    for table in tables:
        print(f"{table.title}\n\n{table.as_markdown()}", flush=True)


def rounded(value: Any) -> Any:
    """Round floats to six digits."""
    if isinstance(value, Mapping):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
