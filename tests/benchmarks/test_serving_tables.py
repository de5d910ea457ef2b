"""Tables of the serving benchmarks: bounds by hand, and all of them from the figures that are kept."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.serving.tables import as_tables
from tests.markdown import ROOT


def quantiles(p50: float, p95: float) -> dict[str, float]:
    return {"p50": p50, "p95": p95}


def real(*sparse: float) -> dict[str, Any]:
    """Dense steps of 0.2 s, and sparse ones of these."""
    return {
        "clients": 8, "new_tokens": 128,
        "decoding": [{
            "prompt": 3000, "rounds": len(sparse),
            "seconds": {"dense": quantiles(0.2, 0.25), "sparse": quantiles(0.1, 0.15)},
            "by_round": {
                "dense": [quantiles(0.2, 0.25)] * len(sparse), "sparse": [quantiles(s, 2 * s) for s in sparse],
            },
            "kept": {"kept_share": 0.05, "value_row_share": 0.1, "value_rows": 306.0},
        }],
    }  # fmt: skip


def test_a_ratio_is_the_geometric_mean_of_the_rounds_with_its_bounds() -> None:
    # ratios 1.6, 2 and 2.5: logarithms lie ln 1.25 apart, and Student's t of two degrees is 4.303
    (row,) = as_tables({"real": real(0.125, 0.1, 0.08)})["real"].rows
    assert row[:3] == ["3000 tokens", "200, 250", "100, 150"]
    factor = 1.25 ** (4.303 / 3**0.5)
    assert row[3] == f"**2.00 ({2 / factor:.2f} to {2 * factor:.2f})**"
    assert row[5:] == ["306, 10.0%", "55.0%"]


def test_one_round_has_no_bounds() -> None:
    assert as_tables({"real": real(0.1)})["real"].rows[0][3] == "**2.00 (one round)**"


def test_what_is_kept_makes_all_tables() -> None:
    tables = as_tables(json.loads((ROOT / "docs/results/serving.json").read_text()))
    assert {name: len(table.rows) for name, table in tables.items()} == {
        "load": 4,
        "break-even": 3,
        "real": 2,
    }
