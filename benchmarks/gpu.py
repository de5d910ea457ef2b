"""Renews the table of the GPU in docs/performance.md from docs/results/gpu.json; measures nothing.

python -m benchmarks.gpu
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.tables import renew
from toptheta_npu._tables import Table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
_RESULTS = PAGE.parent / "results" / "gpu.json"


def gains() -> list[float]:
    """List how many times as fast as PyTorch's attention the Triton kernels were."""
    return [row["sdpa"] / row["milliseconds"] for row in _stored()["rows"]]


def tables() -> dict[str, Table]:
    """Make the table by the name of its place."""
    columns = ("batch, heads, keys", "SDPA, the fastest", "Top-θ, k = 128", "times as fast", "reading K alone")
    rows = [
        [f"{row['batch']}, {row['heads']}, {row['keys']}", _time(row["sdpa"]), _time(row["milliseconds"]),
         f"{gain:.2f}", _time(row["reading_k"]) if "reading_k" in row else "not measured"]
        for row, gain in zip(_stored()["rows"], gains(), strict=True)
    ]  # fmt: skip
    return {"gpu": Table("On a GPU", columns, rows)}


def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(_RESULTS.read_text())
    return stored


def _time(milliseconds: float) -> str:
    return f"{1000 * milliseconds:.0f} µs"


if __name__ == "__main__":
    renew(PAGE, tables())
