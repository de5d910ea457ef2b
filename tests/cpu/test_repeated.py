"""A decode call that repeats for other rows says what the operator says with the means of the V sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import toptheta_npu
from tests.cpu.test_page_sums import DTYPES
from tests.serving.paged_engine import rebuild
from tests.tiers import only
from toptheta_npu import TopThetaValueError, incremental_attention_with_stats
from toptheta_npu.cpu.repeated import LayerDecode, RepeatedRows
from toptheta_npu.fallback.arguments import Arguments
from toptheta_npu.vllm.page_sums import NewRows, PageSums

BLOCKS, BLOCK_SIZE, HEADS, KV_HEADS, HEAD_DIM = 12, 16, 6, 2, 32
#: Of tables: their places, and those of a step's rows; of layers: how many, and which one a call is of.
PLACES, LAYERS, LAYER = 40, 3, 1
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"placement": "post_softmax"}, {"placement": "sampled_softmax"}, {"sdc": "none"},
    {"sdc": "exp_threshold", "sdc_gamma": 0.1}, {"sdc": "offline"},
)  # fmt: skip


def caches(dtype: torch.dtype, by_columns: bool) -> tuple[Tensor, Tensor]:
    shape = (BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    key, value = (torch.randn(shape).to(dtype) for _ in range(2))
    if by_columns:
        key = key.transpose(2, 3).contiguous().transpose(2, 3)
    return key, value


def drawn_call(key: Tensor, value: Tensor, batch: int, seed: int, options: dict[str, Any]) -> Arguments:
    """A step of ``batch`` sequences, whose query is a part of wider rows, as an engine's projection leaves it."""
    draw = torch.Generator().manual_seed(seed)
    wide = torch.randn(batch, HEADS + 2, HEAD_DIM, generator=draw).to(key.dtype)
    pages = BLOCKS // batch
    table = torch.randperm(BLOCKS, generator=draw)[: batch * pages].view(batch, pages)
    lengths = torch.randint(0, pages * BLOCK_SIZE + 1, (batch,), generator=draw)
    theta = torch.randn(batch, HEADS, generator=draw)
    post = "placement" in options
    return Arguments(
        HEADS, KV_HEADS, 0.3, wide[:, 1 : HEADS + 1, None], key, value, theta.sigmoid() / 9 if post else theta,
        lengths.to(torch.int32 if seed % 2 else torch.int64), None, table.int(),
        discarded_mass=torch.rand(batch, HEADS, generator=draw) if options.get("sdc") == "offline" else None,
        block_size=BLOCK_SIZE, **options,
    )  # fmt: skip


def by_operator(a: Arguments) -> tuple[Tensor, ...]:
    return incremental_attention_with_stats(
        a.query, a.key, a.value, a.threshold, actual_seq_lengths=a.actual_seq_lengths, block_table=a.block_table,
        block_size=BLOCK_SIZE, num_key_value_heads=KV_HEADS, scale_value=a.scale_value, placement=a.placement,
        sdc=a.sdc, sdc_gamma=a.sdc_gamma, discarded_mass=a.discarded_mass, value_mean=a.value_mean,
    )  # fmt: skip


def with_sums(a: Arguments) -> tuple[PageSums, Arguments]:
    """V sums of all rows but those of the step, and a call with the means that they give."""
    blocks, heads, rows, head_dim = a.value.shape
    sums = PageSums(blocks, rows, heads, head_dim, "cpu")
    assert a.block_table is not None
    assert a.actual_seq_lengths is not None
    rebuild(sums, a.value, a.block_table, (a.actual_seq_lengths - 1).clamp_min(0))
    return sums, a._replace(value_mean=sums.means(a.value, NewRows(a.block_table, a.actual_seq_lengths)))


def places_of(a: Arguments) -> Tensor:
    return torch.randperm(PLACES, generator=torch.Generator().manual_seed(len(a.query)))[: len(a.query)]


def as_table(a: Arguments, rows: Tensor) -> Tensor:
    """A table with these rows where they are looked up, and NaN elsewhere."""
    table = torch.full((PLACES, HEADS), torch.nan)
    table[places_of(a)] = rows
    return table


def repeatable(first: Arguments, a: Arguments, sums: PageSums | None = None) -> LayerDecode:
    """The first call, to be repeated with tables in which the rows of another one are found."""
    mass = None if a.discarded_mass is None else as_table(a, a.discarded_mass)
    packed = None if sums is None else sums.native_form(a.value)
    return LayerDecode(first, as_table(a, a.threshold), mass, LAYER, packed)


def rows_of(call: LayerDecode, a: Arguments) -> RepeatedRows | None:
    assert a.actual_seq_lengths is not None
    assert a.block_table is not None
    new = NewRows(a.block_table, a.actual_seq_lengths)
    return call.rows(new.packed, a.actual_seq_lengths, a.block_table, places_of(a), LAYERS)


def repeat(call: LayerDecode, a: Arguments) -> tuple[Tensor, ...] | None:
    query, rows = a.query.squeeze(2), rows_of(call, a)
    assert rows is not None
    out = torch.full_like(query, torch.nan, memory_format=torch.contiguous_format)
    if call(query, a.key, a.value, rows, out):
        return out.unsqueeze(2), rows.kept[LAYER], rows.value_rows[LAYER]
    assert out.isnan().all()
    return None


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("dtype", only({torch.bfloat16}, DTYPES))
def test_it_says_bit_for_bit_what_the_operator_says(dtype: torch.dtype, by_columns: bool) -> None:
    torch.manual_seed(0)
    key, value = caches(dtype, by_columns)
    with toptheta_npu.use_backend("native", device="cpu"):
        for options in OPTIONS:
            first = drawn_call(key, value, 3, 0, options)
            assert LayerDecode.is_possible(first)
            for seed, batch in enumerate((3, 1, 12, 4)):
                other = drawn_call(key, value, batch, seed, options)
                sums, other = (None, other) if options.get("sdc") == "none" else with_sums(other)
                found = repeat(repeatable(first, other, sums), other)
                out, _, *counts = by_operator(other)
                assert found is not None
                assert all(map(torch.equal, found, (out, *counts)))
                assert found[1].sum() > 0


def test_values_that_the_operator_refuses_are_not_run() -> None:
    key, value = caches(torch.float32, False)
    with toptheta_npu.use_backend("native", device="cpu"):
        good = drawn_call(key, value, 2, 0, {})
        sums, _ = with_sums(good)
        assert good.block_table is not None
        assert good.actual_seq_lengths is not None
        long = torch.full_like(good.actual_seq_lengths, BLOCK_SIZE * BLOCKS)
        for wrong in (
            good._replace(threshold=good.threshold.clone().fill_(torch.nan)),
            good._replace(actual_seq_lengths=long + 1),
            good._replace(actual_seq_lengths=long // 2, block_table=good.block_table + BLOCKS),
        ):
            assert repeat(repeatable(good, wrong), wrong) is None
            assert repeat(repeatable(good, wrong, sums), wrong) is None
            with pytest.raises(TopThetaValueError):
                by_operator(wrong)


def test_other_caches_queries_and_backends_do_not_fit() -> None:
    key, value = caches(torch.float32, False)
    with toptheta_npu.use_backend("native", device="cpu"):
        a = drawn_call(key, value, 2, 0, {})
        call = repeatable(a, a)
        assert repeat(call, a) is not None
        for changed in (
            a._replace(key=key.clone()), a._replace(value=value.clone()), a._replace(query=a.query.half()),
            a._replace(query=a.query[:, 1:]), a._replace(query=torch.cat([a.query, a.query])),
        ):  # fmt: skip
            query, rows = changed.query.squeeze(2), rows_of(call, a)
            assert rows is not None
            assert not call(query, changed.key, changed.value, rows, torch.empty_like(query))
        query, rows = a.query.squeeze(2), rows_of(call, a)
        assert rows is not None
        for out in (
            query.new_empty(3, HEADS, HEAD_DIM),
            query.half(),
            query.new_empty(2, HEADS, 2 * HEAD_DIM)[..., ::2],
        ):
            assert not call(query, key, value, rows, out)
    with toptheta_npu.use_backend("fallback", device="cpu"):
        assert rows_of(call, a) is None
        assert not LayerDecode.is_possible(a)
    for other in (
        a._replace(actual_seq_lengths=None), a._replace(block_table=None), a._replace(key=key.to("meta")[:, 0]),
        a._replace(query=a.query.to("meta")), a._replace(learnable_sink=torch.zeros(HEADS)),
    ):  # fmt: skip
        assert not LayerDecode.is_possible(other)
