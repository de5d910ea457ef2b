"""A decode call that repeats for other rows says what the operator says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import toptheta_npu
from tests.cpu.test_page_sums import DTYPES
from tests.tiers import only
from toptheta_npu import TopThetaValueError, incremental_attention_with_stats
from toptheta_npu.cpu.repeated import RepeatedDecode, RepeatedRows
from toptheta_npu.fallback.arguments import Arguments

BLOCKS, BLOCK_SIZE, HEADS, KV_HEADS, HEAD_DIM = 12, 16, 6, 2, 32
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"placement": "post_softmax"}, {"sdc": "none"}, {"sdc": "exp_threshold", "sdc_gamma": 0.1}, {"sdc": "offline"},
)  # fmt: skip


def caches(dtype: torch.dtype, by_columns: bool) -> tuple[Tensor, Tensor]:
    shape = (BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    key, value = (torch.randn(shape).to(dtype) for _ in range(2))
    if by_columns:
        key = key.transpose(2, 3).contiguous().transpose(2, 3)
    return key, value


def drawn_call(key: Tensor, value: Tensor, batch: int, seed: int, vmc: bool, options: dict[str, Any]) -> Arguments:
    """A step of ``batch`` sequences, whose query is a part of wider rows, as an engine's projection leaves it."""
    draw = torch.Generator().manual_seed(seed)
    wide = torch.randn(batch, HEADS + 2, HEAD_DIM, generator=draw).to(key.dtype)
    pages = -(-BLOCKS // batch)
    table = (torch.randperm(BLOCKS * 2, generator=draw) % BLOCKS)[: batch * pages].view(batch, pages)
    lengths = torch.randint(0, pages * BLOCK_SIZE + 1, (batch,), generator=draw)
    theta = torch.randn(batch, HEADS, generator=draw)
    post = options.get("placement") == "post_softmax"
    return Arguments(
        HEADS, KV_HEADS, 0.3, wide[:, 1 : HEADS + 1, None], key, value, theta.sigmoid() / 9 if post else theta,
        lengths.to(torch.int32 if seed % 2 else torch.int64), None, table.int(),
        discarded_mass=torch.rand(batch, HEADS, generator=draw) if options.get("sdc") == "offline" else None,
        value_mean=torch.randn(batch, KV_HEADS, HEAD_DIM, generator=draw) if vmc else None,
        block_size=BLOCK_SIZE, **options,
    )  # fmt: skip


def by_operator(a: Arguments) -> tuple[Tensor, ...]:
    return incremental_attention_with_stats(
        a.query, a.key, a.value, a.threshold, actual_seq_lengths=a.actual_seq_lengths, block_table=a.block_table,
        block_size=BLOCK_SIZE, num_key_value_heads=KV_HEADS, scale_value=a.scale_value, placement=a.placement,
        sdc=a.sdc, sdc_gamma=a.sdc_gamma, discarded_mass=a.discarded_mass, value_mean=a.value_mean,
    )  # fmt: skip


def repeat(call: RepeatedDecode, a: Arguments) -> tuple[Tensor, ...] | None:
    query, batch = a.query.squeeze(2), len(a.query)
    assert a.actual_seq_lengths is not None
    assert a.block_table is not None
    rows = RepeatedRows(a.actual_seq_lengths, a.block_table, torch.full((batch, HEADS), torch.nan))
    out = torch.full((batch, HEADS, HEAD_DIM), torch.nan, dtype=query.dtype)
    kept, value_rows = (torch.full((batch, heads), -1, dtype=torch.int32) for heads in (HEADS, KV_HEADS))
    done = call(query, rows, a.threshold, a.discarded_mass, a.value_mean, out, kept, value_rows)
    return (out.unsqueeze(2), rows.lse, kept, value_rows) if done else None


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("dtype", only({torch.bfloat16}, DTYPES))
def test_it_says_bit_for_bit_what_the_operator_says(dtype: torch.dtype, by_columns: bool) -> None:
    torch.manual_seed(0)
    key, value = caches(dtype, by_columns)
    with toptheta_npu.use_backend("native", device="cpu"):
        for options in OPTIONS:
            vmc = options.get("sdc") != "none"
            first = drawn_call(key, value, 3, 0, vmc, options)
            assert RepeatedDecode.is_possible(first)
            call = RepeatedDecode(first)
            for seed, batch in enumerate((3, 1, 12, 4)):
                other = drawn_call(key, value, batch, seed, vmc, options)
                assert call.fits(other.query.squeeze(2), key, value)
                found = repeat(call, other)
                assert found is not None
                assert all(map(torch.equal, found, by_operator(other)))
                assert found[2].sum() > 0


def test_values_that_the_operator_refuses_are_not_run() -> None:
    key, value = caches(torch.float32, False)
    with toptheta_npu.use_backend("native", device="cpu"):
        good = drawn_call(key, value, 2, 0, True, {})
        call = RepeatedDecode(good)
        assert good.block_table is not None
        assert good.actual_seq_lengths is not None
        long = torch.full_like(good.actual_seq_lengths, BLOCK_SIZE * BLOCKS)
        for wrong in (
            good._replace(threshold=good.threshold.clone().fill_(torch.nan)),
            good._replace(actual_seq_lengths=long + 1),
            good._replace(actual_seq_lengths=long // 2, block_table=good.block_table + BLOCKS),
        ):
            assert repeat(call, wrong) is None
            with pytest.raises(TopThetaValueError):
                by_operator(wrong)


def test_other_caches_queries_and_backends_do_not_fit() -> None:
    key, value = caches(torch.float32, False)
    with toptheta_npu.use_backend("native", device="cpu"):
        a = drawn_call(key, value, 2, 0, True, {})
        call, query = RepeatedDecode(a), a.query.squeeze(2)
        assert call.fits(query, key, value)
        assert not call.fits(query, key.clone(), value)
        assert not call.fits(query, key, value.clone())
        assert not call.fits(query.half(), key, value)
        assert not call.fits(query[:, 1:], key, value)
    with toptheta_npu.use_backend("fallback", device="cpu"):
        assert not call.fits(query, key, value)
        assert not RepeatedDecode.is_possible(a)
    for changed in (
        a._replace(actual_seq_lengths=None), a._replace(block_table=None), a._replace(key=key.to("meta")[:, 0]),
        a._replace(query=a.query.to("meta")), a._replace(learnable_sink=torch.zeros(HEADS)),
    ):  # fmt: skip
        assert not RepeatedDecode.is_possible(changed)
