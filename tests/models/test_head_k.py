"""A k for every head in `sparsify`: outputs, statistics, and what goes with the largest alone."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from tests.models.tiny import K, left_padded, model_of, oracle_attention, tokens
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.models import (
    NothingSparsifiedWarning,
    apply_selection,
    calibrate,
    calibrate_discarded_mass,
    sparsify,
)
from toptheta_npu.models.sparse import threshold_rule
from toptheta_npu.thresholds import ThresholdTable

pytestmark = pytest.mark.usefixtures("no_grad")

#: Some heads keep their largest element alone; the others aim at 5 to 20 elements.
BUDGET = torch.tensor([[5, 1, 20, 9], [1, 12, 5, 1]])
WITHOUT_ONES = BUDGET.clamp_min(5)
ALONE = BUDGET == 1


@lru_cache
def table_of(placement: str = "pre_softmax") -> ThresholdTable:
    """Layer 0 keeps at least 10 elements, and was calibrated for fewer, too."""
    return calibrate(
        model_of(), tokens(6, 80, seed=1), k=[5, 20], layer_k=[10, 0], below_layer_k=True, placement=placement,
        top_k_at_calibration=False, estimator="pooled",
    )  # fmt: skip


def decoded(cache, ids: Tensor, first: int = 30, between=lambda: None) -> Tensor:
    """Logits of the prompt's last row and of the steps after it."""
    found = [model_of()(ids[:, :first], past_key_values=cache).logits[:, -1:]]
    for at in range(first, ids.shape[1]):
        between()
        found.append(model_of()(ids[:, at : at + 1], past_key_values=cache).logits)
    return torch.cat(found, dim=1)


@pytest.fixture
def thresholds(monkeypatch):
    """The thresholds that the operator gets in decode steps: a list of [B, Hq], layer by layer."""
    seen: list[Tensor] = []

    def noting(original):
        def noted(query, key, value, threshold, **options):
            seen.append(threshold.clone())
            return original(query, key, value, threshold, **options)

        return noted

    for name in ("incremental_attention", "incremental_attention_with_stats"):
        monkeypatch.setattr(threshold_rule, name, noting(getattr(threshold_rule, name)))
    return seen


# --- outputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_decode_steps_and_prompts_follow_the_oracle_with_a_threshold_per_head(placement):
    table, ids = table_of(placement), tokens(2, 40, seed=2)
    with oracle_attention(model_of(), table, head_k=BUDGET):
        expected = model_of()(ids).logits
    with sparsify(model_of(), table, head_k=BUDGET, prefill="thresholded"):
        torch.testing.assert_close(model_of()(ids).logits, expected, atol=2e-5, rtol=2e-5)
        # the prompt of one token: every row is a decode step
        steps = decoded(DynamicCache(), ids, first=1)
    torch.testing.assert_close(steps, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("static", [False, True])
def test_a_budget_may_come_between_two_steps_and_is_that_of_at(placement, static, thresholds):
    ids, table = tokens(2, 34, seed=3), table_of(placement)
    new_cache = (lambda: StaticCache(config=model_of().config, max_cache_len=64)) if static else DynamicCache
    with sparsify(model_of(), table, head_k=BUDGET) as run:
        expected = decoded(new_cache(), ids)
        assert (run.k, run.target_kept) == (None, None)
        assert torch.equal(run.head_k, BUDGET)
    at = table.at(head_k=BUDGET)
    for number, theta in enumerate(thresholds):
        assert torch.equal(theta.expand(2, -1), at.theta[number % 2][31 + number // 2].expand(2, -1))
    with sparsify(model_of(), table, k=20) as run:
        assert run.head_k is None
        run.set_target_kept(0.25)
        run.set_head_k(BUDGET.tolist())
        assert torch.equal(decoded(new_cache(), ids), expected)
        run.set_k(7)
        assert run.head_k is None
        assert not torch.equal(decoded(new_cache(), ids), expected)


def test_the_same_k_everywhere_is_that_k():
    ids, table = tokens(1, 36, seed=4), table_of()
    with sparsify(model_of(), table, k=12):
        expected = decoded(DynamicCache(), ids)
    with sparsify(model_of(), table, head_k=torch.full((2, 4), 12)):
        assert torch.equal(decoded(DynamicCache(), ids), expected)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_1_keeps_the_largest_element_alone(placement):
    ids, table = tokens(2, 40, seed=5), table_of(placement)
    with apply_selection(model_of(), lambda layer: select_top_k(1)):
        expected = model_of()(ids).logits
    with sparsify(model_of(), table, head_k=[[1] * 4] * 2, prefill="thresholded", statistics=True) as run:
        torch.testing.assert_close(model_of()(ids).logits, expected, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(decoded(DynamicCache(), ids, first=1), expected, atol=2e-5, rtol=2e-5)
        assert all((layer.kept == 1).all() for layer in run.statistics())


def test_the_offline_discarded_mass_is_that_of_each_heads_k(monkeypatch):
    table = calibrate_discarded_mass(model_of(), table_of(), tokens(6, 80, seed=1))
    at, seen, original = table.at(head_k=WITHOUT_ONES), [], threshold_rule.incremental_attention

    def noted(*args, discarded_mass, **options):
        seen.append(discarded_mass.clone())
        return original(*args, discarded_mass=discarded_mass, **options)

    monkeypatch.setattr(threshold_rule, "incremental_attention", noted)
    with sparsify(model_of(), table, head_k=WITHOUT_ONES, sdc="offline"):
        decoded(DynamicCache(), tokens(1, 32, seed=6))
    for number, mass in enumerate(seen):
        assert torch.equal(mass, at.discarded_mass[number % 2][31 + number // 2][None])
    assert len(seen) == 4


# --- statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefill", ["dense", "thresholded"])
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_kept_over_k_is_by_each_heads_own_k_and_leaves_out_the_largest_alone(placement, prefill):
    table, batch = table_of(placement), left_padded([tokens(1, length, seed=length) for length in (30, 12, 19)])
    found = {}
    for kind in ("rows", "summary"):
        with sparsify(model_of(), table, head_k=BUDGET, prefill=prefill, statistics=kind) as run:
            model_of().generate(**batch, max_new_tokens=12, min_new_tokens=12, do_sample=False)
            found[kind] = run.statistics() if kind == "rows" else run.summaries()
    for layer, (rows, summary) in enumerate(zip(found["rows"], found["summary"], strict=True)):
        assert summary.kept.tolist() == rows.kept.sum(0).tolist()
        assert summary.empty.tolist() == rows.empty.sum(0).tolist()
        for head, k in enumerate(BUDGET[layer].tolist()):
            sparse = rows.keys > k
            if k == 1:
                assert (rows.kept[:, head] == 1).all()
                assert not rows.empty[:, head].any()
                sparse = torch.zeros_like(sparse)
            assert summary.sparse_rows[head] == sparse.sum()
            assert summary.sparse_aims[head] == k * sparse.sum()
            assert summary.sparse_kept[head] == rows.kept[sparse, head].sum()
            dense = rows.keys <= k
            assert (rows.kept[dense, head] == rows.keys[dense]).all()
        assert torch.equal(summary.kept_over_aim.isnan(), ALONE[layer])
        assert 0.3 < summary.kept_over_aim.nanmean() < 3


def test_rows_that_are_dense_in_all_heads_are_not_sparsified():
    budget = torch.tensor([[20, 15, 20, 20], [20, 20, 16, 20]])
    with (
        pytest.warns(NothingSparsifiedWarning, match="rows of up to 15 keys are dense"),
        sparsify(model_of(), table_of(), head_k=budget, statistics=True) as run,
    ):
        decoded(DynamicCache(), tokens(1, 15), first=5)
    assert all((layer.kept == layer.keys[:, None]).all() for layer in run.statistics())
    with sparsify(model_of(), table_of(), head_k=budget) as run:
        decoded(DynamicCache(), tokens(1, 16), first=5)
        assert run.dense_up_to() == 15


# --- refusals -----------------------------------------------------------------------------------------

WHY = "with heads that keep their largest element alone (head_k = 1)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vmc": False}, f"vmc: expected True {WHY}, got False; give these heads a calibrated k, or use vmc=True"),
        ({"sdc": "none", "vmc": False}, f"sdc: expected 'exact' {WHY}, got 'none'; give these heads a calibrated k"),
        ({"sdc": "exp_threshold"}, f"sdc: expected 'exact' {WHY}, got 'exp_threshold'"),
    ],
)
def test_the_largest_alone_needs_exact_compensation(options, message):
    with pytest.raises(TopThetaValueError) as caught:
        sparsify(model_of(), table_of(), head_k=BUDGET, **options).__enter__()
    assert str(caught.value).startswith(message)
    ids = tokens(1, 34, seed=8)
    with sparsify(model_of(), table_of(), head_k=WITHOUT_ONES, **options) as run:
        expected = decoded(DynamicCache(), ids)
        with pytest.raises(TopThetaValueError) as caught:
            run.set_head_k(BUDGET)
        assert str(caught.value).startswith(message)
        assert torch.equal(run.head_k, WITHOUT_ONES)
        assert torch.equal(decoded(DynamicCache(), ids), expected)


def test_the_largest_alone_has_no_offline_mass():
    table = calibrate_discarded_mass(model_of(), table_of(), tokens(6, 80, seed=1))
    with pytest.raises(TopThetaValueError, match=r"sdc: expected 'exact' with heads that .* got 'offline'"):
        sparsify(model_of(), table, head_k=BUDGET, sdc="offline").__enter__()


def test_post_softmax_the_largest_alone_needs_vmc():
    with pytest.raises(TopThetaValueError, match="vmc: expected True with heads that"):
        sparsify(model_of(), table_of("post_softmax"), head_k=BUDGET, vmc=False).__enter__()


def test_a_refused_budget_changes_nothing():
    ids = tokens(1, 34, seed=9)
    with sparsify(model_of(), table_of(), head_k=BUDGET) as run:
        expected = decoded(DynamicCache(), ids)
        for head_k, kind, message in (
            ([[5, 4, 20, 9], [5] * 4], TopThetaValueError, r"head_k\[0, 1\]: expected 5 to 20, the calibrated range"),
            ([[5.0] * 4] * 2, TopThetaTypeError, r"head_k: expected integers \[layers, heads\], got"),
            ([[5] * 4] * 3, TopThetaValueError, r"head_k: expected shape \(2, 4\), layers and heads, got \(3, 4\)"),
            (None, TopThetaValueError, "k: expected k, target_kept or head_k, got none of them"),
        ):
            with pytest.raises(kind, match=message):
                run.set_head_k(head_k)
        run.head_k[:] = 5  # a copy
        assert torch.equal(run.head_k, BUDGET)
        assert torch.equal(decoded(DynamicCache(), ids), expected)
    with pytest.raises(TopThetaValueError, match="got one that has ended"):
        run.set_head_k(BUDGET)
    with pytest.raises(TopThetaValueError, match=r"^k=8 excludes head_k=\[\[5, 1.*; pass one of them"):
        sparsify(model_of(), table_of(), k=K, head_k=BUDGET).__enter__()
