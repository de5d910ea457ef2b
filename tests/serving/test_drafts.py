"""Steps with drafts against their tokens alone: rows, V means, sums for later steps, counts, and what is dense."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.paged_engine import rebuild
from tests.serving.test_steps import DIM, HEADS, KV_HEADS, SEQUENCES, make_engine, thresholds
from toptheta_npu import incremental_attention
from toptheta_npu.vllm.layers import LayerGroup, LayerRule
from toptheta_npu.vllm.layouts import Pages
from toptheta_npu.vllm.metrics import Aims, Counters
from toptheta_npu.vllm.page_sums import NewRows
from toptheta_npu.vllm.steps import Step, attend

MASSES = torch.rand(65, HEADS, generator=torch.Generator().manual_seed(3))


def new_rule(vmc: bool, sdc: str, pages: Pages) -> LayerRule:
    table = dataclasses.replace(thresholds(), discarded_mass=(MASSES,))
    group = LayerGroup(table, [0], offline=sdc == "offline", counters=Counters(1, HEADS, KV_HEADS, Aims(table, [0])))
    return LayerRule(0, group, KV_HEADS, DIM**-0.5, vmc=vmc, sdc=sdc).with_pages(pages)  # type: ignore[arg-type]


@given(
    SEQUENCES, st.integers(0, 10**6), st.booleans(), st.integers(2, 6),
    st.sampled_from([("exact", True), ("none", False), ("offline", True)]),
)  # fmt: skip
def test_every_token_is_the_step_that_it_would_be_alone(
    sequences: list[tuple[int, int]], seed: int, transposed: bool, verify_tokens: int, compensation: tuple[str, bool]
) -> None:
    (sdc, vmc), (counts, pasts) = compensation, map(list, zip(*sequences, strict=True))
    engine = make_engine(counts, pasts, seed, transposed)
    given_step = engine.step.query_start_loc, engine.step.seq_lens, engine.step.block_table
    step = Step.of(*given_step, verify_tokens=verify_tokens)
    rule = new_rule(vmc, sdc, Pages(engine.key_cache, engine.value_cache))
    if rule.page_sums is not None:
        rebuild(rule.page_sums, engine.value_cache, step.block_table, torch.tensor(pasts))
    out = torch.full_like(engine.query, torch.nan)
    attend(step, engine.query, engine.key_cache, engine.value_cache, rule, out)
    first = decoded = 0
    for (count, past), key, value in zip(sequences, engine.keys, engine.values, strict=True):
        decodes = count == 1 or (past > 0 and 1 < count <= verify_tokens)
        for token in range(first, first + count):
            n = past + token - first + 1
            if not decodes:
                assert out[token].isnan().all()
                continue
            decoded += 1
            mean = value[:, :n].mean(1)[None] if vmc else None
            expected = incremental_attention(
                engine.query[token][None, :, None], key[None, :, :n], value[None, :, :n],
                rule.group.thresholds.rows(0, torch.tensor([n])), value_mean=mean, sdc=sdc,  # type: ignore[arg-type]
                discarded_mass=MASSES[n][None] if sdc == "offline" else None,
            )  # fmt: skip
            torch.testing.assert_close(out[token], expected[0, :, 0], atol=1e-5, rtol=1e-4)
        first += count
    assert rule.group.counters is not None
    assert rule.group.counters.totals()["rows"] == decoded
    if rule.page_sums is not None:  # what later steps begin with, whether drafts are accepted or not
        for accepted in (True, False):
            kept = [past + (count if accepted or count < 2 else 1) for count, past in sequences]
            lengths = torch.tensor(kept, dtype=torch.int32).clamp_min(1)
            means = rule.page_sums.means(engine.value_cache, NewRows(step.block_table, lengths))
            for mean, value, n in zip(means, engine.values, kept, strict=True):
                if n:
                    torch.testing.assert_close(mean, value[:, :n].mean(1), atol=1e-5, rtol=1e-4)


def test_v_rows_of_a_sequence_count_once_for_all_its_tokens() -> None:
    engine = make_engine([1, 4, 2], [30, 31, 17], 0, False)
    rule = new_rule(True, "exact", Pages(engine.key_cache, engine.value_cache))
    given_step = engine.step.query_start_loc, engine.step.seq_lens, engine.step.block_table
    step, out = Step.of(*given_step, verify_tokens=4), torch.empty_like(engine.query)
    attend(step, engine.query, engine.key_cache, engine.value_cache, rule, out)
    assert rule.group.counters is not None
    counted = rule.group.counters.totals()
    lengths = [31, 32, 33, 34, 35, 18, 19]
    assert counted["elements"] == sum(lengths) * HEADS
    kept, rows = 0, 0
    for sequence, tokens in enumerate(([0], [1, 2, 3, 4], [5, 6])):
        union = torch.zeros(KV_HEADS, lengths[tokens[-1]], dtype=torch.bool)
        for token in tokens:
            n = lengths[token]
            theta = rule.group.thresholds.rows(0, torch.tensor([n]))[0]
            query = engine.query[token].view(KV_HEADS, -1, DIM)
            scores = query @ engine.keys[sequence][:, :n].transpose(1, 2) * DIM**-0.5
            keep = scores > theta.view(KV_HEADS, -1, 1)
            kept += int(keep.sum())
            union[:, :n] |= keep.any(1)
        rows += int(union.sum())
    assert (counted["kept"], counted["value_rows"]) == (kept, rows)


@pytest.mark.parametrize("dense_below", [30, 36])
def test_a_step_whose_drafts_are_short_is_dense(dense_below: int) -> None:
    engine = make_engine([1, 4, 9], [3, 31, 17], 0, False)
    given_step = engine.step.query_start_loc, engine.step.seq_lens, engine.step.block_table
    step = Step.of(*given_step, dense_below=dense_below, verify_tokens=4)
    assert step.several.tolist() == ([2] if dense_below == 30 else [0, 1, 2])
    assert step.lengths.tolist() == ([4, 32, 33, 34, 35] if dense_below == 30 else [])
