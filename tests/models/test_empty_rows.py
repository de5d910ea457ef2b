"""Rows in which nothing passes the threshold: counted apart from those that keep one element."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import DynamicCache

from tests.models.tiny import K, left_padded, model_of, table_of, tokens
from toptheta_npu.evaluation.methods.top_k import select_top_k as top_k
from toptheta_npu.models import apply_selection, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.sparse import threshold_rule

pytestmark = pytest.mark.usefixtures("no_grad")


def high(placement: str, above: float):
    """Thresholds that many rows do not reach."""
    table = table_of(placement=placement)
    raised = table.theta + above if placement == "pre_softmax" else table.theta * above
    return dataclasses.replace(table, theta=raised)


@pytest.mark.parametrize(("placement", "above"), [("pre_softmax", 1.0), ("post_softmax", 2.0)])
def test_decode_steps_and_prompts_mark_the_rows_whose_largest_score_does_not_pass(placement, above, monkeypatch):
    table, largest, original = high(placement, above), [], threshold_rule.incremental_attention_with_stats

    def seen(query, key, value, threshold, **options):
        for row in range(len(query)):
            first = int(options["key_start"][row])
            keys = key[row, :, first:].double().repeat_interleave(2, dim=0)
            scores = torch.einsum("hd,hsd->hs", query[row, :, 0].double(), keys) * options["scale_value"]
            shown = scores.softmax(-1) if placement == "post_softmax" else scores
            largest.append((shown.amax(-1) <= threshold[row]).tolist())
        return original(query, key, value, threshold, **options)

    monkeypatch.setattr(threshold_rule, "incremental_attention_with_stats", seen)
    batch = left_padded([tokens(1, length, seed=length) for length in (30, 19)])
    with sparsify(model_of(), table, k=K, statistics=True) as run:
        model_of().generate(**batch, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        layers = run.statistics()
    expected = torch.tensor(largest).view(7, 2, 2, 4)  # steps, layers, sequences, heads
    found = torch.stack([layer.empty.view(7, 2, 4) for layer in layers], dim=1)
    assert torch.equal(found, expected)
    assert 0 < found.float().mean() < 1
    kept = torch.stack([layer.kept.view(7, 2, 4) for layer in layers], dim=1)
    assert (kept[found] == 1).all()


def test_a_prompt_marks_them_as_its_decode_steps_do():
    table, ids = high("pre_softmax", 1.0), tokens(2, 40)
    with sparsify(model_of(), table, k=K, prefill="thresholded", statistics=True) as run:
        model_of()(ids)
        prompt = run.statistics()[0].empty.view(2, 40, 4)
    with sparsify(model_of(), table, k=K, statistics=True) as run:
        cache = DynamicCache()
        for at in range(40):
            model_of()(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache})
        decode = run.statistics()[0].empty.view(40, 2, 4).transpose(0, 1)
    assert torch.equal(prompt, decode)
    assert 0 < prompt.float().mean() < 1


def test_rules_with_a_k_leave_no_row_empty():
    with apply_selection(model_of(), lambda layer: top_k(1), statistics=True) as run:
        model_of()(tokens(1, 20))
    assert not run.statistics()[0].empty.any()
