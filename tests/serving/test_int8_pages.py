"""int8 pages: what is written is what the operator and V sums read, whatever else lies in the pages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import toptheta_npu
from tests.serving.test_steps import thresholds
from toptheta_npu import TopThetaNotImplementedError, TopThetaTypeError, incremental_attention, prefill_attention
from toptheta_npu.fallback.antiquant import dequantise, quantise, token_scale
from toptheta_npu.vllm.int8_pages import DenseRows, dequantise_pages, row_bytes, view_int8_pages, write_rows
from toptheta_npu.vllm.layers import LayerGroup, LayerRule
from toptheta_npu.vllm.layouts import Pages
from toptheta_npu.vllm.page_sums import NewRows, PageSums
from toptheta_npu.vllm.steps import Step, attend

BLOCKS, HEADS, KV_HEADS, PAGE, DIM = 9, 4, 2, 16, 32
COUNTS, PASTS = [1, 5, 1, 20, 1], [30, 3, 47, 13, 7]


def rounded(rows: Tensor) -> Tensor:
    scale = token_scale(rows)[..., None]
    return dequantise(quantise(rows, scale), scale)


class Sequences:
    """Sequences whose rows were written token by token into pages in a drawn order, and the same rows alone."""

    def __init__(self, seed: int = 0, *, in_larger_blocks: bool = False) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.lengths = [sum(pair) for pair in zip(COUNTS, PASTS, strict=True)]
        pages = [-(-length // PAGE) for length in self.lengths]
        blocks = sum(pages) + 1
        memory = torch.full((blocks, 3 if in_larger_blocks else 1, KV_HEADS, PAGE, row_bytes(DIM)), -1).char()
        self.cache = view_int8_pages(memory[:, -1], KV_HEADS, DIM)
        order, self.table = torch.randperm(blocks, generator=draw).int(), torch.full((len(pages), max(pages)), -1).int()
        self.keys, self.values = ([torch.randn(n, KV_HEADS, DIM, generator=draw) for n in self.lengths]
                                  for _ in range(2))  # fmt: skip
        taken = 0
        for index, count in enumerate(pages):
            self.table[index, :count] = order[taken : taken + count]
            taken += count
            places = torch.arange(self.lengths[index])
            slots = self.table[index, places // PAGE].long() * PAGE + places % PAGE
            padded = torch.cat([slots, torch.tensor([-1, -1])])
            rows = (torch.cat([each[index], torch.full((2, KV_HEADS, DIM), torch.nan)])
                    for each in (self.keys, self.values))  # fmt: skip
            write_rows(self.cache, *rows, padded)
        self.starts = torch.tensor([0, *COUNTS]).cumsum(0).int()
        self.query = torch.randn(sum(COUNTS), HEADS, DIM, generator=draw)
        self.step = Step.of(self.starts, torch.tensor(self.lengths, dtype=torch.int32), self.table)

    def alone(self, index: int) -> tuple[Tensor, Tensor]:
        """The rounded rows of a sequence, [1, Hkv, n, D]."""
        keys, values = (rounded(each[index]).transpose(0, 1)[None] for each in (self.keys, self.values))
        return keys, values


@pytest.mark.parametrize("in_larger_blocks", [False, True])
def test_rows_are_where_they_are_looked_for(in_larger_blocks: bool) -> None:
    made = Sequences(in_larger_blocks=in_larger_blocks)
    assert made.cache.pages.antiquant is not None
    for index, length in enumerate(made.lengths):
        places = torch.arange(length)
        page, row = made.table[index, places // PAGE].long(), places % PAGE
        for numbers, scale, rows in zip(
            made.cache.pages[:2], made.cache.pages.antiquant[:2], (made.keys, made.values), strict=True
        ):
            assert torch.equal(scale[page, :, row], token_scale(rows[index]))
            assert torch.equal(dequantise(numbers[page, :, row], scale[page, :, row, None]), rounded(rows[index]))


@pytest.mark.parametrize("backend", ["native", "fallback"])
@pytest.mark.parametrize("prefill", ["dense", "thresholded"])
@pytest.mark.parametrize("vmc", [False, True])
def test_every_row_is_that_of_rounded_rows(vmc: bool, prefill: Any, backend: Any) -> None:
    made = Sequences()
    rule = LayerRule(0, LayerGroup(thresholds(), [0]), KV_HEADS, DIM**-0.5, prefill=prefill, vmc=vmc)
    rule = rule.with_pages(made.cache.pages)
    assert (rule.page_sums is not None) == vmc
    if rule.page_sums is not None:
        past = torch.tensor(PASTS, dtype=torch.int32)
        rule.page_sums.rebuild(made.cache.pages.values, made.table, past)
    out, again = (torch.full_like(made.query, torch.nan) for _ in range(2))
    with toptheta_npu.use_backend(backend, device="cpu"):
        for to in (out, again):  # by the operator, and by the call that repeats it
            attend(made.step, made.query, *made.cache.pages[:2], rule, to)
    torch.testing.assert_close(out, again, atol=0, rtol=0, equal_nan=True)
    assert (rule in rule.group.repeated) == (backend == "native")
    for index, (first, count, length) in enumerate(zip(made.starts, COUNTS, made.lengths, strict=False)):
        found, rows, (keys, values) = out[first : first + count], made.query[first : first + count], made.alone(index)
        theta = rule.group.thresholds.rows(0, torch.arange(length - count + 1, length + 1))
        if count == 1:
            mean = values.mean(2) if vmc else None
            expected = incremental_attention(rows[:, :, None], keys, values, theta, value_mean=mean)[:, :, 0]
        elif prefill == "thresholded":
            whole = prefill_attention(rows.transpose(0, 1)[None], keys, values, theta.T, vmc=vmc)
            expected = whole[0].transpose(0, 1)
        else:
            assert found.isnan().all()
            continue
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_dense_rows_attend_to_all_rounded_rows_up_to_their_own() -> None:
    made = Sequences()
    chosen = torch.tensor([1, 2])
    rows = DenseRows.of(chosen, made.starts, made.step.seq_lens, made.table)
    out = torch.full_like(made.query, torch.nan)
    rows.attend(made.query, made.cache.pages, DIM**-0.5, out)
    assert rows.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert (~out.isnan().any(-1).any(-1)).nonzero()[:, 0].tolist() == rows.tokens.tolist()
    for index in chosen.tolist():
        keys, values = made.alone(index)
        of = made.query[made.starts[index] : made.starts[index + 1]]
        theta = torch.full((HEADS, len(of)), -torch.inf)
        expected = prefill_attention(of.transpose(0, 1)[None], keys, values, theta)[0].transpose(0, 1)
        torch.testing.assert_close(out[made.starts[index] : made.starts[index + 1]], expected, atol=2e-4, rtol=1e-4)


def test_pages_are_multiplied_out_in_the_order_that_is_asked_for() -> None:
    made = Sequences()
    room = Pages(*torch.full((2, 4, KV_HEADS, PAGE, DIM), torch.nan, dtype=torch.bfloat16).unbind())
    dequantise_pages(made.cache.pages, made.table[4, :1].long(), room)
    for rows, whole in zip(room[:2], made.alone(4), strict=True):
        assert torch.equal(rows[0, :, : made.lengths[4]], whole[0].bfloat16())
        assert rows[1:].isnan().all()


@pytest.mark.parametrize("backend", ["native", "fallback"])
def test_sums_without_scales_refuse_int8_and_sums_with_scales_all_else(backend: Any) -> None:
    values = torch.zeros(BLOCKS, KV_HEADS, PAGE, DIM)
    new = NewRows(torch.zeros(1, 1, dtype=torch.int32), torch.tensor([3]))
    with toptheta_npu.use_backend(backend, device="cpu"):
        with pytest.raises(
            TopThetaTypeError, match=r"value_cache: expected float16, bfloat16 or float32, got torch.int8"
        ):
            PageSums(BLOCKS, PAGE, KV_HEADS, DIM, "cpu").means(values.char(), new)
        sums = PageSums(BLOCKS, PAGE, KV_HEADS, DIM, "cpu", scale=torch.ones(KV_HEADS, DIM))
        with pytest.raises(TopThetaTypeError, match=r"value_cache: expected int8, as it has scales, got torch.float32"):
            sums.means(values, new)


def test_slots_outside_of_the_cache_are_an_error() -> None:
    made = Sequences()
    rows = torch.ones(1, KV_HEADS, DIM)
    before = made.cache.numbers.clone()
    with pytest.raises(IndexError):
        write_rows(made.cache, rows, rows, torch.tensor([len(before) * PAGE]))
    assert torch.equal(made.cache.numbers, before)


WRONG = {
    "another width": torch.zeros(BLOCKS, KV_HEADS, PAGE, 2 * DIM, dtype=torch.int8),
    "heads last": torch.zeros(BLOCKS, PAGE, KV_HEADS, row_bytes(DIM), dtype=torch.int8),
    "gaps": torch.zeros(BLOCKS, KV_HEADS, PAGE, row_bytes(DIM) + 8, dtype=torch.int8)[..., : row_bytes(DIM)],
    "not int8": torch.zeros(BLOCKS, KV_HEADS, PAGE, row_bytes(DIM)),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_lies_otherwise_is_refused(case: str) -> None:
    with pytest.raises(
        TopThetaNotImplementedError, match=r"^kv_cache: expected int8 keys, values and then their scales"
    ):
        view_int8_pages(WRONG[case], KV_HEADS, DIM)
