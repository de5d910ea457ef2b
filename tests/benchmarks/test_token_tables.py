"""Several query tokens and drafts: their tables, from figures that are made up."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from benchmarks import drafts, query_tokens
from benchmarks.real_model_study.analysis import Bounded


def test_a_step_of_several_tokens_stands_beside_its_bytes() -> None:
    seconds = {"tokens": 2e-3, "tokens at -inf": 3e-3, "one": 1e-3, "one at -inf": 2e-3, "read of K": 0.5e-3}
    result = {
        "shape": str(query_tokens.SHAPES[0]), "tokens": 4, "overlap": 0.95, "densities": [0.25, 0.0625],
        "seconds": {"cold": seconds, "hot": seconds},
    }  # fmt: skip
    cold, hot = query_tokens.as_table({"avx2": [result]}).rows
    assert cold[:3] == ["32/8 n=8192 k=128, alike", "avx2", "cold"]
    # 2 / 1.25 of the bytes at most, and 1.25 / 1.0625 of those of one token
    assert cold[3:] == hot[3:] == ["0.062 → 0.250", "1.50", "1.60", "2.00", "1.18", "2.00", "1.00", "0.62"]


def test_what_drafts_share_and_gain() -> None:
    unions = {1: 0.05, 2: 0.07, 4: 0.1, 8: 0.15}
    assert drafts.union_table({"a model": unions}).rows == [["a model", "5.0 %", "7.0 %", "10.0 %", "15.0 %"]]
    ratio = Bounded(2.0, 1.5, 2.5)
    speed = {"prompt": 900, "k": 64, "tokens_per_call": 3.44, "over_dense_with_drafts": ratio,
             "over_top_theta_alone": ratio, "over_dense": ratio}  # fmt: skip
    shown = "2.00 (1.50 to 2.50)"
    row = ["a model, 900 keys, k = 64", "3.4", f"**{shown}**", f"**{shown}**", shown]
    assert drafts.speed_table({"a model": speed}).rows == [row]
