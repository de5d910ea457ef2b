"""What drafts share and gain: the tables, from figures that are made up."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from benchmarks import drafts
from benchmarks.real_model_study.analysis import Bounded


def test_what_drafts_share_and_gain() -> None:
    unions = {1: 0.05, 2: 0.07, 4: 0.1, 8: 0.15}
    assert drafts.union_table({"a model": unions}).rows == [["a model", "5.0 %", "7.0 %", "10.0 %", "15.0 %"]]
    ratio = Bounded(2.0, 1.5, 2.5)
    speed = {"prompt": 900, "k": 64, "tokens_per_call": 3.44, "over_dense_with_drafts": ratio,
             "over_top_theta_alone": ratio, "over_dense": ratio}  # fmt: skip
    shown = "2.00 (1.50 to 2.50)"
    row = ["a model, 900 keys, k = 64", "3.4", f"**{shown}**", f"**{shown}**", shown]
    assert drafts.speed_table({"a model": speed}).rows == [row]
