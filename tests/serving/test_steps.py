"""Steps of an engine against single sequences: mixed batches, paged and strided caches, thresholded prompts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.serving.paged_engine import rebuild
from toptheta_npu import TopThetaValueError, incremental_attention, prefill_attention
from toptheta_npu.thresholds import ThresholdsAtK
from toptheta_npu.vllm.layers import LayerGroup, LayerRule
from toptheta_npu.vllm.layouts import Pages
from toptheta_npu.vllm.metrics import Aims, Counters
from toptheta_npu.vllm.page_sums import NewRows
from toptheta_npu.vllm.steps import Step, attend

HEADS, KV_HEADS, DIM, PAGE, LONGEST = 4, 2, 32, 16, 64


@dataclass
class Engine:
    """Caches of some sequences, paged in a drawn order, and the new tokens of each."""

    counts: list[int]
    keys: list[Tensor]  # [Hkv, n, D]
    values: list[Tensor]
    query: Tensor
    step: Step
    key_cache: Tensor
    value_cache: Tensor


def thresholds() -> ThresholdsAtK:
    generator = torch.Generator().manual_seed(7)
    theta = torch.randn(LONGEST + 1, HEADS, generator=generator) * 0.5
    theta[:5] = -torch.inf
    aims = torch.full((LONGEST + 1,), 4, dtype=torch.int32)
    return ThresholdsAtK(
        k=4, placement="pre_softmax", longest=LONGEST, layer_targets=(4,),
        dense_up_to=(4,), theta=(theta,), discarded_mass=None, aims=(aims,),
    )  # fmt: skip


def make_engine(counts: list[int], pasts: list[int], seed: int, transposed: bool) -> Engine:
    generator = torch.Generator().manual_seed(seed)
    lengths = [count + past for count, past in zip(counts, pasts, strict=True)]
    keys, values = ([torch.randn(KV_HEADS, n, DIM, generator=generator) for n in lengths] for _ in range(2))
    pages = [-(-n // PAGE) for n in lengths]
    order = torch.randperm(sum(pages) + 1, generator=generator)
    shape = (len(order), KV_HEADS, PAGE, DIM)
    # vLLM's CPU cache has the keys of a page by columns
    key_cache = torch.full(shape, torch.nan) if not transposed else torch.full(
        (len(order), KV_HEADS, DIM, PAGE), torch.nan).transpose(2, 3)  # fmt: skip
    value_cache = torch.full(shape, torch.nan)
    table = torch.full((len(counts), max(pages) + 1), -1, dtype=torch.int32)
    taken = 0
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        for page in range(pages[index]):
            place = int(order[taken])
            table[index, page] = place
            rows = slice(page * PAGE, (page + 1) * PAGE)
            key_cache[place, :, : key[:, rows].shape[1]] = key[:, rows]
            value_cache[place, :, : key[:, rows].shape[1]] = value[:, rows]
            taken += 1
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    query = torch.randn(sum(counts), HEADS, DIM, generator=generator)
    step = Step.of(starts, torch.tensor(lengths, dtype=torch.int32), table)
    return Engine(counts, keys, values, query, step, key_cache, value_cache)


# new tokens and those before; a sequence has at least one
SEQUENCES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 40)).map(lambda one: one if any(one) else (0, 1)),
    min_size=1,
    max_size=5,
).filter(lambda sequences: any(count for count, _ in sequences))


@given(SEQUENCES, st.integers(0, 10**6), st.booleans(), st.sampled_from(["dense", "thresholded"]))
def test_every_row_is_that_of_its_sequence_alone(
    sequences: list[tuple[int, int]], seed: int, transposed: bool, prefill: str
) -> None:
    engine = make_engine([count for count, _ in sequences], [past for _, past in sequences], seed, transposed)
    rule = LayerRule(0, LayerGroup(thresholds(), [0]), KV_HEADS, DIM**-0.5, prefill=prefill)  # type: ignore[arg-type]
    for _ in range(2):  # by the operator, and by the call that repeats it
        out = torch.full_like(engine.query, torch.nan)
        attend(engine.step, engine.query, engine.key_cache, engine.value_cache, rule, out)
    assert (rule in rule.group.repeated) == (1 in engine.counts)
    first = 0
    for count, key, value in zip(engine.counts, engine.keys, engine.values, strict=True):
        rows = engine.query[first : first + count]
        if count == 1:
            theta = rule.group.thresholds.rows(0, torch.tensor([key.shape[1]]))
            expected = incremental_attention(rows[:, :, None], key[None], value[None], theta)[:, :, 0]
            torch.testing.assert_close(out[first : first + 1], expected)
        elif count and prefill == "thresholded":
            counts = torch.arange(key.shape[1] - count + 1, key.shape[1] + 1)
            theta = rule.group.thresholds.rows(0, counts).T
            expected = prefill_attention(rows.transpose(0, 1)[None], key[None], value[None], theta)
            torch.testing.assert_close(out[first : first + count], expected[0].transpose(0, 1))
        else:
            assert out[first : first + count].isnan().all()
        first += count


def test_repeated_steps_write_into_any_output_and_refuse_what_the_operator_refuses() -> None:
    engine = make_engine([1, 1, 1], [8, 30, 2], 0, True)
    rule = LayerRule(0, LayerGroup(thresholds(), [0]), KV_HEADS, DIM**-0.5)
    caches, expected = (engine.key_cache, engine.value_cache), torch.empty_like(engine.query)
    attend(engine.step, engine.query, *caches, rule, expected)
    padded = torch.cat([engine.query, torch.zeros(2, HEADS, DIM)])
    for out in (torch.zeros(5, HEADS, DIM), torch.zeros(5, HEADS, 2 * DIM)[..., ::2]):
        attend(engine.step, padded, *caches, rule, out)
        assert torch.equal(out[:3], expected)
        assert not out[3:].any()
    beyond = Step.of(engine.step.query_start_loc, engine.step.seq_lens + 1000, engine.step.block_table)
    with pytest.raises(TopThetaValueError, match=r"^actual_seq_lengths\[0\]: expected 0 to "):
        attend(beyond, engine.query, *caches, rule, expected)


@pytest.mark.parametrize("counts", [[1, 1, 1], [3, 1, 0, 1], [1, 16, 1]])
def test_a_call_that_repeats_makes_the_same_sums_and_rows_bit_for_bit(counts: list[int]) -> None:
    engine = make_engine(counts, [30, 31, 5, 47][: len(counts)], 0, True)
    group, found = LayerGroup(thresholds(), [0]), []
    pasts = engine.step.seq_lens - torch.tensor(counts)
    first = LayerRule(0, group, KV_HEADS, DIM**-0.5, vmc=True).with_pages(Pages(engine.key_cache, engine.value_cache))
    for _ in range(2):  # by the operator, and by the call that repeats it
        assert first.page_sums is not None
        first.page_sums._sums.fill_(torch.nan)
        rebuild(first.page_sums, engine.value_cache, engine.step.block_table, pasts)
        out = torch.zeros_like(engine.query)
        attend(engine.step, engine.query, engine.key_cache, engine.value_cache, first, out)
        found.append((out, first.page_sums._sums[:-1].nan_to_num()))
    assert first in group.repeated
    assert all(map(torch.equal, *found))
    assert found[0][0].abs().sum() > 0


@pytest.mark.parametrize("apart", [None, 0, 1])
def test_counts_are_the_same_whichever_layer_repeats_no_call(apart: int | None) -> None:
    """A layer with another cache than before runs by the operator, before or after one that repeats its call."""
    engine, one = make_engine([1, 1, 1], [8, 30, 2], 0, True), thresholds()
    names = ("theta", "aims")
    more = {name: (*getattr(one, name), *getattr(one, name)) for name in names}
    table = dataclasses.replace(one, **more, dense_up_to=(4, 4), layer_targets=(4, 4))
    counters = Counters(2, HEADS, KV_HEADS, Aims(table, [0, 1]))
    group = LayerGroup(table, [0, 1], counters=counters)
    rules = [LayerRule(layer, group, KV_HEADS, DIM**-0.5) for layer in (0, 1)]
    totals = []
    for step in range(2):  # by the operator, and by calls that repeat it
        for rule in rules:
            keys = engine.key_cache.clone() if step == 1 and rule.layer == apart else engine.key_cache
            attend(engine.step, engine.query, keys, engine.value_cache, rule, torch.empty_like(engine.query))
        totals.append(counters.totals())
    assert set(group.repeated) == set(rules)
    assert totals[0]["kept"] > 0
    assert totals[1] == {name: 2 * count for name, count in totals[0].items()}


def on(table: ThresholdsAtK, device: str) -> ThresholdsAtK:
    names = ("theta", "aims")
    moved = {name: tuple(each.to(device) for each in getattr(table, name)) for name in names}
    return dataclasses.replace(table, **moved)


def test_a_step_of_decodes_alone_reads_nothing_on_the_host() -> None:
    engine = make_engine([1, 1, 1], [8, 30, 2], 0, False)
    assert engine.step.decode_only
    assert engine.step.sequences is None
    meta = [tensor.to("meta") for tensor in (engine.query, engine.key_cache, engine.value_cache)]
    table = on(thresholds(), "meta")
    counters = Counters(1, HEADS, KV_HEADS, Aims(table, [0]), "meta")
    group = LayerGroup(table, [0], counters=counters)
    rule = LayerRule(0, group, KV_HEADS, DIM**-0.5, vmc=True).with_pages(Pages(*meta[1:3]))
    lengths, pages = engine.step.seq_lens.to("meta"), engine.step.block_table.to("meta")
    step = Step.of(engine.step.query_start_loc, lengths, pages)
    attend(step, *meta, rule, torch.empty_like(meta[0]))  # a read of a value would raise


def test_layers_of_a_group_look_up_once_and_count_together() -> None:
    """In each step, whichever they are: a graph may be captured with a step that has run before."""
    engine, one = make_engine([1, 3, 1], [8, 10, 30], 0, False), thresholds()
    names = ("theta", "aims")
    more = {name: (*getattr(one, name), getattr(one, name)[0] + 1) for name in names}
    table = dataclasses.replace(one, **more, dense_up_to=(4, 4), layer_targets=(4, 4))
    group = LayerGroup(table, [0, 1], counters=Counters(2, HEADS, KV_HEADS, Aims(table, [0, 1])))
    looked_up = []
    for _ in range(2):
        for layer in (0, 1):
            out = torch.zeros_like(engine.query)
            rule = LayerRule(layer, group, KV_HEADS, DIM**-0.5)
            attend(engine.step, engine.query, engine.key_cache, engine.value_cache, rule, out)
            looked_up.append(engine.step.rows_of(LayerRule(1, group, KV_HEADS, 1.0)))
            theta, whole = table.rows(layer, torch.tensor([31])), (engine.keys[2][None], engine.values[2][None])
            torch.testing.assert_close(
                out[4:5, :, None], incremental_attention(engine.query[4:, :, None], *whole, theta)
            )
    assert looked_up[0] is looked_up[1]
    assert looked_up[2] is looked_up[3]
    assert looked_up[0] is not looked_up[2]
    assert group.counters is not None
    totals = group.counters.totals()
    assert (totals["rows"], totals["elements"]) == (8, 4 * (9 + 31) * HEADS)


def test_sequences_with_several_tokens_are_told_apart_from_those_with_none() -> None:
    step = Step.of(torch.tensor([0, 0, 1, 4]), torch.tensor([0, 5, 9]), torch.zeros(3, 1, dtype=torch.int32))
    assert step.sequences is not None
    assert step.sequences.tolist() == [1]
    assert list(step.ranges()) == [(2, 1, 4)]
    assert step.counts.tolist() == [3]
    assert step.dense_tokens.tolist() == [1, 2, 3]


@given(SEQUENCES, st.integers(0, 10**6), st.integers(1, 50))
def test_nothing_is_sparse_in_a_step_of_short_rows(sequences: list[tuple[int, int]], seed: int, below: int) -> None:
    counts, pasts = [count for count, _ in sequences], [past for _, past in sequences]
    engine = make_engine(counts, pasts, seed, False)
    given_step = engine.step.query_start_loc, engine.step.seq_lens, engine.step.block_table
    step, plain = Step.of(*given_step, dense_below=below), engine.step
    if any(count == 1 and past + 1 >= below for count, past in sequences):
        assert step.lengths.tolist() == plain.lengths.tolist()
        assert step.several.tolist() == plain.several.tolist()
        return
    assert not step.decodes
    assert not step.decode_only
    assert step.several.tolist() == [index for index, count in enumerate(counts) if count]
    assert step.dense_tokens.tolist() == list(range(sum(counts)))
    # V sums are made nevertheless: a later step begins with them
    group, lengths = LayerGroup(thresholds(), [0]), engine.step.seq_lens
    rule = LayerRule(0, group, KV_HEADS, DIM**-0.5, vmc=True).with_pages(Pages(engine.key_cache, engine.value_cache))
    assert rule.page_sums is not None
    rebuild(rule.page_sums, engine.value_cache, engine.step.block_table, torch.tensor(pasts))
    out = torch.full_like(engine.query, torch.nan)
    attend(step, engine.query, engine.key_cache, engine.value_cache, rule, out)
    assert out.isnan().all()
    means = rule.page_sums.means(engine.value_cache, NewRows(engine.step.block_table, lengths))
    for mean, value in zip(means, engine.values, strict=True):
        torch.testing.assert_close(mean, value.mean(1))
