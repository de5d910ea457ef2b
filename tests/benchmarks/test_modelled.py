"""Decode steps on the host model: bounds by bytes, and gains."""

from __future__ import annotations

import pytest

from benchmarks.modelled.calls import Call, model
from benchmarks.modelled.step import EXPECTED
from tests.tiers import full
from toptheta_npu.timing.shapes import Shape, parse_shape

_SMALL = Shape(1, 4, 4, n=256, k=16, head_dim=64)


@full
def test_bytes_bounds_and_gains() -> None:
    result = model(Call(_SMALL))
    assert result.kept.rows_read == result.kept.rows_needed == 4 * 16
    assert result.dense.rows_read == 4 * 256
    assert result.limit == pytest.approx(2 / (1 + 1 / 16))
    assert result.gain("cold") == result.dense.cold / result.kept.cold
    best, expected, worst = result.kept.times["cold"]
    assert best < expected < worst
    assert (expected, result.kept.times["hot"][EXPECTED]) == (result.kept.cold, result.kept.hot)
    assert result.kept.launch == sorted(set(result.kept.launch))
    launch = result.kept.launch[EXPECTED]
    assert result.gain_with_launch() == (result.dense.cold + launch) / (result.kept.cold + launch) < result.gain()
    assert result.gain_over_any_dense == result.dense.bound["cold"] / result.kept.cold < result.gain()


@pytest.mark.parametrize(
    "text",
    [
        "heads=8/2,n=1000,block_size=128,batch=2,head_dim=64",  # the last block of each sequence is not full
        "heads=4/4,n=256,k=256,dtype=bfloat16",
        "heads=4/1,n=512,k=5,head_dim=32,batch=3",
        "heads=4/2,n=250,k=5,head_dim=32,query_tokens=3",
    ],
)
def test_exactly_the_asked_for_rows_are_needed(text: str) -> None:
    shape = parse_shape(text)
    result = model(Call(shape))
    valid = shape.batch * shape.num_key_value_heads * shape.n
    assert result.kept.of_rows == result.dense.rows_needed == valid
    assert shape.k * shape.batch * shape.num_key_value_heads <= result.kept.rows_needed
    assert result.kept.rows_needed <= min(valid, shape.k * shape.batch * shape.num_heads * shape.query_tokens)
    assert result.kept.rows_read >= result.kept.rows_needed
