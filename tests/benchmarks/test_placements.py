"""Placements are compared on the same rows."""

from __future__ import annotations

import torch

from benchmarks import placements
from toptheta_npu.timing.inputs import make_inputs
from toptheta_npu.timing.shapes import parse_shape

_SMALL = parse_shape("heads=4/2,n=300,k=16,head_dim=32,dtype=float32")


def test_the_calls_keep_the_same_elements_and_give_the_same_rows() -> None:
    inputs = make_inputs(_SMALL, "cpu", copies=2)
    dense, by_score, by_probability, by_sample = (call(1) for call in placements.variants(inputs).values())
    torch.testing.assert_close(dense, inputs.answers["dense"].view_as(dense), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(by_probability, by_score, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(by_sample, by_score)
    assert (by_score - dense).abs().max() > 0.01


def test_every_row_is_timed() -> None:
    found = placements.measure(_SMALL, 1, rounds=2)
    assert found["shape"] == str(_SMALL)
    assert min(found[name] for name in ("dense", "pre_softmax", "post_softmax", "sampled")) > 0


def test_the_table_has_ratios_to_reading_all_of_v() -> None:
    found = {"shape": str(_SMALL), "dense": 3.0, "pre_softmax": 1.5, "post_softmax": 2.0, "sampled": 4.0}
    assert placements.as_table([found]).rows == [["4/2 n=300 k=16 f32, head_dim 32", "2.00", "1.50", "0.75"]]
