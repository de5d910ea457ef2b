"""A k for every head: `ThresholdTable.at(head_k=...)` against lookups of one k, and what a budget may ask for."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdExtrapolationWarning, ThresholdsAtK, ThresholdTable

LAYERS, HEADS = 2, 3
K = (16, 64, 128)
LENGTHS = (17, 40, 65, 129, 256, 512)
LOOKUPS: tuple[dict[str, Any], ...] = (
    {}, {"dense_below": 90}, {"lookup": "fitted"}, {"max_length": 900}, {"max_length": 900, "extrapolation": "fitted"},
    {"max_length": 900, "extrapolation": "fitted", "lookup": "fitted", "dense_below": 30},
)  # fmt: skip


def make(placement: str = "pre_softmax", seed: int = 0, **changes: Any) -> ThresholdTable:
    """Thresholds with scatter that fall with k and rise with n, and discarded mass before the softmax."""
    draw = np.random.default_rng(seed)
    shape = (len(K), LAYERS, HEADS, len(LENGTHS))
    line = 2 * draw.normal(size=(1, LAYERS, HEADS, 1)) - 0.9 * np.log(K)[:, None, None, None] + 0.7 * np.log(LENGTHS)
    line = line + 0.1 * draw.normal(size=shape)
    theta = line if placement == "pre_softmax" else np.exp(np.minimum(line - 8, 0))
    mass = torch.from_numpy(draw.uniform(size=shape).astype(np.float32)) if placement == "pre_softmax" else None
    fields: dict[str, Any] = {
        "theta": torch.from_numpy(theta.astype(np.float32)), "k": torch.tensor(K), "lengths": torch.tensor(LENGTHS),
        "counts": torch.full(shape[1:], 5), "std": torch.zeros(shape), "placement": placement, "estimator": "pooled",
        "alpha": 0.0, "layer_k": (0,) * LAYERS, "fingerprint": "model", "discarded_mass": mass,
    }  # fmt: skip
    return ThresholdTable(**{**fields, **changes})


def at(table: ThresholdTable, *args: Any, **options: Any) -> ThresholdsAtK:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ThresholdExtrapolationWarning)
        return table.at(*args, **options)


def same(ours: tuple[Tensor, ...] | None, theirs: tuple[Tensor, ...] | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


# --- the values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", LOOKUPS)
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_the_same_k_for_every_head_is_that_k_bit_for_bit(placement: str, options: dict[str, Any]) -> None:
    table = make(placement)
    for k in (16, 20, 64, 100, 128):
        ours, theirs = at(table, head_k=[[k] * HEADS] * LAYERS, **options), at(table, k, **options)
        for name in ("theta", "discarded_mass", "row_aims", "head_aims"):
            assert same(getattr(ours, name), getattr(theirs, name)), name
        assert (ours.layer_targets, ours.dense_up_to, ours.longest) == (
            theirs.layer_targets, theirs.dense_up_to, theirs.longest,
        )  # fmt: skip
        assert (ours.k, ours.target_kept) == (None, None)
        assert ours.head_k is not None
        assert torch.equal(ours.head_k, torch.full((LAYERS, HEADS), k))
        assert theirs.head_k is None


@st.composite
def tables_and_budgets(draw: st.DrawFn) -> tuple[ThresholdTable, Tensor, dict[str, Any]]:
    k = sorted(draw(st.sets(st.integers(1, 200), min_size=1, max_size=4)))
    lengths = sorted(draw(st.sets(st.integers(1, 400), min_size=2, max_size=6)))
    layers, heads = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    placement = draw(st.sampled_from(["pre_softmax", "post_softmax"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    theta = 3 * torch.randn(len(k), layers, heads, len(lengths), generator=generator)
    theta[torch.rand(theta.shape, generator=generator) < 0.05] = -torch.inf
    floors = [draw(st.sampled_from([0, 0, k[0], k[-1], 90, 300])) for _ in range(layers)]
    pre = placement == "pre_softmax"
    table = ThresholdTable(
        theta=theta if pre else (theta - 10).exp().clamp(max=1), k=torch.tensor(k), lengths=torch.tensor(lengths),
        counts=torch.ones(layers, heads, len(lengths), dtype=torch.int64), std=torch.zeros_like(theta),
        placement=placement, estimator="pooled", alpha=0.0, layer_k=floors, fingerprint="model",
        discarded_mass=torch.rand(theta.shape, generator=generator) if pre else None,
    )  # fmt: skip
    budget = [
        [draw(st.one_of(st.just(1), st.integers(max(k[0], floor), max(k[-1], floor)))) for _ in range(heads)]
        for floor in floors
    ]
    options = draw(st.sampled_from(LOOKUPS))
    options = {name: min(value, lengths[-1]) if name == "dense_below" else value for name, value in options.items()}
    return table, torch.tensor(budget), options


@given(tables_and_budgets())
@settings(max_examples=150, deadline=None)
def test_every_head_has_what_a_lookup_of_its_k_alone_gives(
    case: tuple[ThresholdTable, Tensor, dict[str, Any]],
) -> None:
    table, budget, options = case
    found = at(table, head_k=budget, **options)
    n = torch.arange(found.longest + 1)
    for layer in range(table.num_layers):
        for head, k in enumerate(budget[layer].tolist()):
            dense = n <= max(k, options.get("dense_below", 0) - 1)
            theta, aims = found.theta[layer][:, head], found.aim_rows(layer, n)[:, head]
            if k == 1:
                assert torch.equal(theta, torch.where(dense, -torch.inf, torch.inf))
                assert not aims.any()
                continue
            plain = at(table, min(k, int(table.k[-1])), **options)
            assert torch.equal(theta, plain.theta[layer][:, head])
            if found.discarded_mass is not None and plain.discarded_mass is not None:
                assert torch.equal(found.discarded_mass[layer][:, head], plain.discarded_mass[layer][:, head])
            assert (theta[dense] == -torch.inf).all()
            assert (aims == k).all()
        limits = [max(k, options.get("dense_below", 0) - 1) for k in budget[layer].tolist()]
        assert found.dense_up_to[layer] == min(*limits, found.longest)
        assert found.layer_targets[layer] == min(budget[layer].tolist())


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_at_a_knot_a_head_has_what_a_table_of_that_k_alone_gives(placement: str) -> None:
    table = make(placement)
    found = table.at(head_k=[[16, 64, 128], [128, 1, 64]])
    for layer, ks in enumerate(([16, 64, 128], [128, 1, 64])):
        for head, k in enumerate(ks):
            if k == 1:
                continue
            index = K.index(k)
            single = dataclasses.replace(
                table, k=table.k[index : index + 1], theta=table.theta[index : index + 1],
                std=table.std[index : index + 1], discarded_mass=None, layer_k=(0, 0),
            )  # fmt: skip
            assert torch.equal(found.theta[layer][:, head], single.at(k).theta[layer][:, head])


def test_a_budget_replaces_layer_k_where_the_layer_was_calibrated_below_it() -> None:
    free, bound = make(), make(layer_k=(100, 0), calibrated_layer_k=(0, 0))
    budget = [[16, 100, 128], [1, 64, 20]]
    assert same(bound.at(head_k=budget).theta, free.at(head_k=budget).theta)
    # a single k is still at least layer_k
    assert bound.layer_targets(16) == [100, 16]
    found = bound.at(16)
    assert torch.equal(found.theta[0], free.at(100).theta[0])
    assert torch.equal(found.theta[1], free.at(16).theta[1])
    assert (found.layer_targets, found.dense_up_to) == ((100, 16), (100, 16))
    share = bound.at(target_kept=0.1, max_length=512)
    for n in (17, 101, 164, 165, 400):
        want = free.at(max(100, 16, round(0.1 * n))).theta[0][n]
        torch.testing.assert_close(share.theta[0][n], want, rtol=1e-6, atol=1e-6)
    for lookup in ("tabulated", "fitted"):
        assert torch.equal(bound.at(16, lookup=lookup).theta[0], free.at(100, lookup=lookup).theta[0])


def test_what_says_of_which_k_the_thresholds_are() -> None:
    assert make().calibrated_targets.tolist() == [[16, 16], [64, 64], [128, 128]]
    assert make(layer_k=(100, 600)).calibrated_targets.tolist() == [[100, 600], [100, 600], [128, 600]]
    below = make(layer_k=(100, 70), calibrated_layer_k=(0, 70))
    assert below.calibrated_targets.tolist() == [[16, 70], [64, 70], [128, 128]]
    assert make(layer_k=(100, 600)).calibrated_layer_k == (100, 600)


# --- the largest alone --------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_a_head_that_keeps_its_largest_alone_has_infinite_thresholds_and_no_aim(placement: str) -> None:
    found = make(placement).at(head_k=[[1, 64, 1], [20, 20, 20]])
    assert (found.theta[0][2:, ::2] == math.inf).all()
    assert (found.theta[0][:2] == -math.inf).all()
    assert found.theta[0][65:, 1].isfinite().all()
    assert found.keeps_largest_only
    assert (found.dense_up_to, found.layer_targets) == ((1, 20), (1, 20))
    assert found.aim_rows(0, torch.tensor([[5, 600]])).tolist() == [[[0, 64, 0], [0, 64, 0]]]
    if found.discarded_mass is not None:
        assert not found.discarded_mass[0][:, ::2].any()
        assert (found.discarded_mass[0][65:, 1] > 0).all()
    assert not make(placement).at(head_k=[[20] * 3] * 2).keeps_largest_only
    dense = make(placement).at(head_k=[[1, 64, 1], [20, 20, 20]], dense_below=40)
    assert (dense.theta[0][:40, 0] == -math.inf).all()
    assert (dense.theta[0][40:, 0] == math.inf).all()
    assert dense.dense_up_to == (39, 39)


def test_a_calibrated_k_of_1_is_something_else() -> None:
    table = make(k=torch.tensor([1, 64, 128]))
    assert table.at(1).theta[0][40:].isfinite().all()
    assert not table.at(1).keeps_largest_only
    assert (table.at(1).aim_rows(0, torch.tensor([40])) == 1).all()
    assert (table.at(head_k=[[1] * 3] * 2).theta[0][2:] == math.inf).all()


# --- what may be asked for ----------------------------------------------------------------------------

FORM = "head_k: expected integers [layers, heads], got "
ONES = torch.ones(LAYERS, HEADS, dtype=torch.int64)


@pytest.mark.parametrize(
    "head_k",
    [
        torch.tensor([[16, 64, 1], [20, 128, 100]]), torch.tensor([[16, 64, 1], [20, 128, 100]], dtype=torch.int32),
        [[16, 64, 1], [20, 128, 100]], ((16, 64, 1), (20, 128, 100)),
        torch.tensor([[16, 20], [64, 128], [1, 100]]).T,
    ],
)  # fmt: skip
def test_a_budget_is_a_tensor_or_lists(head_k: Any) -> None:
    found = make().at(head_k=head_k)
    assert found.head_k is not None
    assert found.head_k.dtype == torch.int64
    assert found.head_k.tolist() == [[16, 64, 1], [20, 128, 100]]


def test_a_budget_is_copied() -> None:
    budget, table = torch.full((LAYERS, HEADS), 64), make()
    found = table.at(head_k=budget)
    budget[:] = 1
    assert found.head_k is not None
    assert (found.head_k == 64).all()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"head_k": 5}, TopThetaTypeError, f"{FORM}5; pass an int64 tensor, or a list of ints for every layer"),
        ({"head_k": [1, 2]}, TopThetaTypeError, f"{FORM}[1, 2]"),
        ({"head_k": [[1.0]]}, TopThetaTypeError, f"{FORM}[[1.0]]"),
        ({"head_k": [[True]]}, TopThetaTypeError, f"{FORM}[[True]]"),
        ({"head_k": "no"}, TopThetaTypeError, f"{FORM}'no'"),
        ({"head_k": torch.ones(2, 3)}, TopThetaTypeError, f"{FORM}torch.float32"),
        ({"head_k": ONES.to_sparse()}, TopThetaTypeError, "head_k: expected a dense tensor"),
        ({"head_k": ONES.to("meta")}, TopThetaTypeError, "one on the meta device"),
        ({"head_k": [[16], [16, 64]]}, TopThetaValueError, f"{FORM}expected sequence"),
        ({"head_k": [[2**70] * 3] * 2}, TopThetaValueError, FORM.strip()),
        ({"head_k": torch.full((6,), 64)}, TopThetaValueError, f"{FORM}shape (6,)"),
        ({"head_k": []}, TopThetaValueError, f"{FORM}shape (0,)"),
        ({"head_k": [[64] * 2] * 2}, TopThetaValueError, "head_k: expected shape (2, 3), layers and heads, got (2, 2)"),
        (
            {"head_k": [[64, 129, 64], [64] * 3]}, TopThetaValueError,
            "head_k[0, 1]: expected 16 to 128, the calibrated range of the layer, or 1 for the largest alone, got 129; "
            "calibrate with k=129 among the knots",
        ),
        ({"head_k": [[64] * 3, [64, 64, 15]]}, TopThetaValueError, "head_k[1, 2]: expected 16 to 128"),
        ({"head_k": [[0, 64, 64], [64] * 3]}, TopThetaValueError, "head_k[0, 0]: expected 16 to 128"),
        ({"head_k": [[-1, 64, 64], [64] * 3]}, TopThetaValueError, "head_k[0, 0]: expected 16 to 128"),
        (
            {"k": 64, "head_k": [[64] * 3] * 2}, TopThetaValueError,
            "k=64 excludes head_k=[[64, 64, 64], [64, 64, 64]]; pass one of them",
        ),
        ({"target_kept": 0.1, "head_k": [[64] * 3] * 2}, TopThetaValueError, "target_kept=0.1 excludes head_k=[[64"),
    ],
)  # fmt: skip
def test_budgets_that_cannot_be_are_refused(arguments: dict[str, Any], kind: type[TopThetaError], message: str) -> None:
    with pytest.raises(kind) as caught:
        make().at(**arguments)
    assert message in str(caught.value)


def test_below_what_a_layer_was_calibrated_for_there_is_nothing() -> None:
    table = make(layer_k=(100, 600))
    with pytest.raises(TopThetaValueError) as caught:
        table.at(head_k=[[100, 64, 128], [600] * 3])
    assert str(caught.value) == (
        "head_k[0, 1]: expected 100 to 128, the calibrated range of the layer, or 1 for the largest alone, got 64; "
        "calibrate with layer_k=64 or less in layer 0, or with below_layer_k=True"
    )
    with pytest.raises(TopThetaValueError, match="expected 600 to 600, the calibrated range"):
        table.at(head_k=[[100] * 3, [600, 600, 128]])
    found = table.at(head_k=[[100, 1, 128], [600] * 3], max_length=500)
    assert found.dense_up_to == (1, 500)
    assert torch.equal(found.theta[0][:, 0], table.at(16, max_length=500).theta[0][:, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_k": (50, 0), "calibrated_layer_k": (64, 0)},
            "layer_k[0]: expected at least calibrated_layer_k[0]=64, below which it has no thresholds, got 50; "
            "calibrate with another layer_k",
        ),
        (
            {"layer_k": (0, 512), "calibrated_layer_k": (0, 0)},
            "layer_k[1]: expected at most 128, the largest calibrated k, or calibrated_layer_k[1]=0, got 512; "
            "calibrate with k=512 among the knots",
        ),
        ({"calibrated_layer_k": (0, 0, 0)}, "calibrated_layer_k: expected 2 numbers, one per layer, got 3"),
        ({"calibrated_layer_k": (0, -1)}, "calibrated_layer_k: expected an int from 0 to 16777216 per layer, got -1"),
        ({"calibrated_layer_k": 0}, "calibrated_layer_k: expected a list or tuple of ints, got 0"),
    ],
)
def test_a_least_k_needs_thresholds(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TopThetaError) as caught:
        make(**changes)
    assert message in str(caught.value)
