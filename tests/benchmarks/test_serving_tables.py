"""Tables of a real model, of the soak and of what a layer adds, from figures that are made up."""

from __future__ import annotations

from typing import Any

from benchmarks.serving.tables import as_tables, overhead_table


def quantiles(p50: float, p95: float) -> dict[str, float]:
    return {"p50": p50, "p95": p95}


def real(*sparse: float) -> dict[str, Any]:
    """Dense steps of 0.2 s, and sparse ones of these."""
    return {
        "clients": 8, "new_tokens": 128,
        "decoding": [{
            "dtype": "float32", "prompt": 3000, "rounds": len(sparse),
            "seconds": {"dense": quantiles(0.2, 0.25), "sparse": quantiles(0.1, 0.15)},
            "by_round": {
                "dense": [quantiles(0.2, 0.25)] * len(sparse), "sparse": [quantiles(s, 2 * s) for s in sparse],
            },
            "kept": {"kept_share": 0.05, "value_row_share": 0.1, "value_rows": 306.0},
        }],
        "answers": {"requests": 3, "prompt": 3000, "tokens": 96, "wrong_tokens": 0},
    }  # fmt: skip


def test_a_ratio_is_the_geometric_mean_of_the_rounds_with_its_bounds() -> None:
    # ratios 1.6, 2 and 2.5: logarithms lie ln 1.25 apart, and Student's t of two degrees is 4.303
    table = as_tables({"real": real(0.125, 0.1, 0.08)})["real"]
    row, answers = table.rows
    assert row[:3] == ["3000 tokens, float32", "200, 250", "100, 150"]
    factor = 1.25 ** (4.303 / 3**0.5)
    assert row[3] == f"**2.00 ({2 / factor:.2f} to {2 * factor:.2f})**"
    assert row[5:] == ["306, 10.0%", "55.0%"]
    assert answers[0] == "**wrong** of 96 tokens after 3 prompts of 3000"
    assert answers[3] == "**0**"


def test_one_round_has_no_bounds() -> None:
    assert as_tables({"real": real(0.1)})["real"].rows[0][3] == "**2.00 (one round)**"


def test_the_soak_has_a_column_for_each_server() -> None:
    phase = {
        "name": "plain", "requests": 3, "done": {"waits": 2, "leaves": 0}, "seconds": 90.0, "preemptions": 5,
        "decode_tokens": 70, "draft_tokens": 0, "errors": 1, "wrong_tokens": 0, "warm_bytes": 2_000_000_000,
        "end_bytes": 2_010_000_000, "growth": 0.005,
    }  # fmt: skip
    table = as_tables({"soak": {"phases": [phase, phase | {"name": "drafts", "draft_tokens": 9}]}})["soak"]
    assert list(table.columns) == ["", "plain", "drafts"]
    rows = {name: values for name, *values in table.rows}
    assert rows["requests"] == ["3", "3"]
    assert rows["of these: waits"] == ["2", "2"]
    assert rows["tokens by thresholds; with drafts"] == ["70; 0", "70; 9"]
    assert rows["**errors that are not the client's**"] == ["**1**", "**1**"]
    assert rows["**growth**"] == ["**+0.50%**", "**+0.50%**"]


def test_what_a_layer_adds_has_its_quartiles() -> None:
    step = {"batch": 4, "keys": 1500, "above_kernel": [19.6, 20.4, 30.0], "above_operator": [-50.0, -40.2, -30.0]}
    steps = [step | {"floor": [1.0, 1.2, 1.4], "reads": [2.0, 3.0, 4.0]}]
    table = overhead_table({"rounds": 9, "steps": steps})
    assert table.rows == [["4, 1500", "**20 (20 to 30)**", "-40 (-50 to -30)", "1 (1 to 1)", "3 (2 to 4)"]]


def test_an_int8_cache_is_compared_with_one_of_the_models_dtype() -> None:
    step = {"dtype": "bfloat16", "batch": 4, "keys": 1900, "token_bytes": [3072, 1632], "over_same": [1.25]}
    table = as_tables({"int8": {"rounds": 1, "decoding": [step]}})["int8"]
    row = ["bfloat16", "4 sequences of 1900 keys", "**1.25 (one round)**", "3,072, 1,632", "0.531"]
    assert table.rows == [row]
