"""`ThresholdTable.at` against its definition, row by row in float64, for every kind of target and of lookup."""

from __future__ import annotations

import dataclasses
import math
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdExtrapolationWarning, ThresholdTable

LAYERS, HEADS = 3, 2
K = (16, 64, 128)
LENGTHS = (17, 40, 65, 129, 256, 512, 1000)
LAYER_K = (0, 100, 600)
EPS = float(np.finfo(np.float32).eps)


def make(placement: str = "pre_softmax", *, seed: int = 0, **changes: Any) -> ThresholdTable:
    """Thresholds that fall with k and rise with n, with scatter, and another level in every head."""
    draw = np.random.default_rng(seed)
    n, k = np.array(LENGTHS, dtype=np.float64), np.array(K, dtype=np.float64)
    line = 3 * draw.normal(size=(1, LAYERS, HEADS, 1)) + 0.7 * np.log(n) - 0.9 * np.log(k)[:, None, None, None]
    line = line + 0.02 * draw.normal(size=(1, LAYERS, HEADS, len(n)))
    theta = line if placement == "pre_softmax" else np.exp(np.minimum(line - 6, 0))
    shape = (len(K), LAYERS, HEADS, len(LENGTHS))
    fields: dict[str, Any] = {
        "theta": torch.from_numpy(theta.astype(np.float32)), "k": torch.tensor(K), "lengths": torch.tensor(LENGTHS),
        "counts": torch.full(shape[1:], 5), "std": torch.zeros(shape), "placement": placement, "estimator": "pooled",
        "alpha": 0.0, "layer_k": LAYER_K, "fingerprint": "model",
    }  # fmt: skip
    return ThresholdTable(**{**fields, **changes})


def between(position: float, knots: list[int], values: list[float]) -> float:
    """Linear in the logarithm, the end values outside; between a finite and an infinite value the lower."""
    if position <= knots[0]:
        return values[0]
    for (left, low), (right, high) in pairwise(zip(knots, values, strict=True)):
        if position < right:
            if not (math.isfinite(low) and math.isfinite(high)):
                return low if position == left else min(low, high)
            weight = math.log(position / left) / math.log(right / left)
            return low + weight * (high - low)
    return values[-1]


def definition(table: ThresholdTable, values: Tensor, layer: int, head: int, n: int, k: int) -> float:
    """What a row of ``n`` keys that aims at ``k`` has of ``values`` [K, L, Hq, R] in one head, in float64."""
    least, lengths = table.layer_k[layer], table.lengths.tolist()
    k = min(max(k, table.layer_k[layer]), table.k.tolist()[-1])
    ends: dict[int, float] = {}
    for index, knot in enumerate(table.k.tolist()):
        usable = [place for place, length in enumerate(lengths) if length > max(knot, least)]
        row = values[index, layer, head].double().tolist()
        if table.placement == "post_softmax" and values is table.theta:
            row = [math.log(value) if value > 0 else -math.inf for value in row]
        here = [row[place] for place in usable]
        ends[knot] = between(n, [lengths[place] for place in usable], here) if usable else -math.inf
    low, high = max(each for each in ends if each <= k), min(each for each in ends if each >= k)
    if low == high or max(low, least) == max(high, least):
        line = ends[low]
    else:
        line = between(max(k, least), [max(low, least), max(high, least)], [ends[low], ends[high]])
    if table.placement == "post_softmax" and values is table.theta:
        return math.exp(line) if line > -math.inf else line
    return line


SAMPLE = (17, 18, 39, 40, 41, 64, 65, 66, 100, 101, 128, 129, 130, 200, 256, 400, 512, 599, 601, 999, 1000)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("k", [16, 20, 64, 100, 127, 128])
def test_float32_rows_lie_within_a_few_roundings_of_the_definition(placement: str, k: int) -> None:
    table = make(placement)
    found = table.at(k)
    for layer in range(LAYERS):
        target = max(k, LAYER_K[layer])
        for n in SAMPLE:
            for head in range(HEADS):
                value = found.theta[layer][n, head].item()
                want = definition(table, table.theta, layer, head, n, k) if n > target else -math.inf
                scale = abs(want) if placement == "post_softmax" else table.theta[:, layer, head].abs().max().item()
                assert value == want or abs(value - want) <= 3 * EPS * scale
                if n in LENGTHS and k in K:
                    assert value == np.float32(want)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_theta_is_monotone_in_length_and_in_k_but_for_the_last_digit(placement: str) -> None:
    table = make(placement)
    scale = 2 * EPS * table.theta.abs().max().item()
    rows = {k: table.at(k).theta for k in (16, 17, 63, 64, 65, 100, 128)}
    for layer in range(LAYERS):
        for k, theta in rows.items():
            sparse = theta[layer][max(k, LAYER_K[layer]) + 1 :].double()
            lengths = table.lengths[table.lengths > max(k, LAYER_K[layer])] - max(k, LAYER_K[layer]) - 1
            knots = sparse[lengths]
            # between two knots a row lies between their thresholds, and rows follow each other in one direction
            for index, (start, end) in enumerate(pairwise(lengths.tolist())):
                steps = sparse[start : end + 1].diff(dim=0) * (knots[index + 1] - knots[index]).sign()
                assert (steps >= -scale).all()
        for (small, low), (large, high) in pairwise(rows.items()):
            first = max(large, LAYER_K[layer]) + 1
            assert (low[layer][first:] >= high[layer][first:] - scale).all(), (small, large)


def test_a_dense_corner_makes_the_cell_dense_and_no_other() -> None:
    theta = make().theta.clone()
    theta[1, 0, 0, 5] = -math.inf
    found = make(theta=theta).at(100).theta[0][:, 0]
    dense = {n for n in range(101, 1001) if found[n] == -math.inf}
    assert dense == set(range(257, 1000))
    assert not found.isnan().any()
    at_knot = make(theta=theta).at(64).theta[0][:, 0]
    assert {n for n in range(65, 1001) if at_knot[n] == -math.inf} == set(range(257, 1000))
    assert make(theta=theta).at(128).theta[0][129:, 0].isfinite().all()
    assert make(theta=theta).at(63).theta[0][256, 0].isfinite()


def test_an_infinite_theta_in_one_k_gives_way_to_finite_ones() -> None:
    theta = make().theta.clone()
    theta[0, 0, 0, :] = math.inf
    found = make(theta=theta).at(32).theta[0][33:, 0]
    assert found.isfinite().all()
    assert (make(theta=theta).at(16).theta[0][17:, 0] == math.inf).all()


@pytest.mark.parametrize(("low", "high"), [(1e-44, 0.5), (0.5, 1e-44), (1e-37, 1.0)])
def test_probabilities_far_apart_neither_overflow_nor_vanish(low: float, high: float) -> None:
    theta = make("post_softmax").theta.clone()
    theta[:, 0, 0, 2:4] = torch.tensor([low, high])
    table = make("post_softmax", theta=theta)
    found = table.at(16).theta[0][:, 0]
    for n in range(66, 129):
        want = definition(table, table.theta, 0, 0, n, 16)
        # below the smallest normal number there are fewer digits
        assert found[n].item() == pytest.approx(want, rel=3e-5, abs=2e-38)


def test_the_discarded_mass_is_interpolated_as_it_is() -> None:
    mass = torch.rand(len(K), LAYERS, HEADS, len(LENGTHS), generator=torch.Generator().manual_seed(1))
    table = make(discarded_mass=mass)
    found = table.at(100)
    assert found.discarded_mass is not None
    for layer in range(LAYERS):
        for n in SAMPLE:
            for head in range(HEADS):
                sparse = n > max(100, LAYER_K[layer])
                want = definition(table, mass, layer, head, n, 100) if sparse else 0.0
                assert found.discarded_mass[layer][n, head].item() == pytest.approx(want, abs=3 * EPS)


# --- targets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"k": None}, TopThetaTypeError, "k: expected an int, got None"),
        ({"k": 16, "dense_below": -1}, TopThetaValueError, "dense_below: expected 0 to 16777216, got -1"),
        ({"k": 16, "dense_below": 2.0}, TopThetaTypeError, "dense_below: expected an int, got 2.0"),
        ({"k": 16, "lookup": "smoothed"}, TopThetaValueError, "lookup: expected tabulated or fitted, got 'smoothed'"),
    ],
)
def test_at_refuses_what_it_cannot_mean(arguments: dict[str, Any], kind: type[TopThetaError], message: str) -> None:
    with pytest.raises(kind, match=message):
        make().at(**arguments)


def test_rows_say_what_they_aim_at() -> None:
    lengths = torch.tensor([5, 100, 640, 1000, 5000])
    found = make().at(64)
    for layer, least in enumerate(LAYER_K):
        assert found.aim_rows(layer, lengths).tolist() == [max(64, least)] * 5
        assert found.aim_rows(layer, lengths).dtype == torch.int32


# --- dense below a length -----------------------------------------------------------------------------


def test_rows_below_a_length_are_dense() -> None:
    table = make(discarded_mass=torch.ones(len(K), LAYERS, HEADS, len(LENGTHS)))
    without, found = table.at(64), table.at(64, dense_below=300)
    assert found.dense_up_to == (299, 299, 600)
    assert found.layer_targets == without.layer_targets
    assert found.discarded_mass is not None
    for layer, last in enumerate(found.dense_up_to):
        assert (found.theta[layer][: last + 1] == -math.inf).all()
        assert (found.discarded_mass[layer][: last + 1] == 0).all()
        assert torch.equal(found.theta[layer][last + 1 :], without.theta[layer][last + 1 :])
    assert table.at(64, dense_below=10).dense_up_to == without.dense_up_to


@pytest.mark.parametrize("dense_below", [1000, 1001, 5000])
def test_rows_below_a_length_beyond_the_table_are_dense(dense_below: int) -> None:
    table = make(discarded_mass=torch.ones(len(K), LAYERS, HEADS, len(LENGTHS)))
    without, found = table.at(64), table.at(64, dense_below=dense_below)
    assert found.dense_up_to == (dense_below - 1,) * LAYERS
    lengths = torch.tensor([0, 700, 999, 1000, dense_below - 1, dense_below, 9000])
    sparse = lengths >= dense_below
    assert sparse.sum() >= 2
    for layer in range(LAYERS):
        rows, mass = found.rows(layer, lengths), found.discarded_mass_rows(layer, lengths)
        assert (rows[~sparse] == -math.inf).all()
        assert (mass[~sparse] == 0).all()
        assert torch.equal(rows[sparse], without.rows(layer, lengths[sparse]))
        assert torch.equal(mass[sparse], without.discarded_mass_rows(layer, lengths[sparse]))
        assert all(torch.equal(found.row(layer, int(n)), row) for n, row in zip(lengths, rows, strict=True))


# --- the fitted function ------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_fitted_rows_are_those_of_the_function(placement: str) -> None:
    table = make(placement)
    found, fit = table.at(64, lookup="fitted"), table.fit()
    lengths = torch.arange(129, 1001)
    for layer in (0, 1):
        want = fit.predict(lengths)[1, layer].T
        torch.testing.assert_close(found.theta[layer][129:], want, rtol=2e-6, atol=2e-6)
        # the function starts at the first length above the layer's k; shorter rows have its value there
        first = [129, 65][1 - layer]
        target = max(64, LAYER_K[layer])
        assert torch.equal(found.theta[layer][target + 1], found.theta[layer][first])
        assert (found.theta[layer][: target + 1] == -math.inf).all()
    assert not torch.equal(found.theta[0][512], table.at(64).theta[0][512])


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_fitted_rows_are_linear_in_the_logarithm_of_k(placement: str) -> None:
    table = make(placement, layer_k=(0, 0, 0))
    low, middle, high = (table.at(k, lookup="fitted").theta[0][200:] for k in (16, 32, 64))
    want = (low * high).sqrt() if placement == "post_softmax" else (low + high) / 2
    torch.testing.assert_close(middle, want, rtol=3e-6, atol=3e-6)


def test_rows_beyond_the_calibrated_ones_have_the_nearest_or_the_fitted_threshold() -> None:
    table = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ThresholdExtrapolationWarning)
        nearest = table.at(64, max_length=3000).theta[0]
        beyond = table.at(64, lookup="fitted", max_length=3000).theta[0]
    assert torch.equal(nearest[1001:], nearest[1000].expand(2000, -1))
    want = table.fit().predict(torch.tensor([3000]))[1, 0, :, 0]
    torch.testing.assert_close(beyond[3000], want, rtol=2e-6, atol=2e-6)


def test_heads_without_thresholds_stay_dense_when_fitted() -> None:
    theta = make().theta.clone()
    theta[:, 0, 1] = -math.inf
    theta[2, 1, 0] = -math.inf
    table = make(theta=theta, layer_k=(0, 0, 0))
    found = table.at(100, lookup="fitted")
    assert (found.theta[0][:, 1] == -math.inf).all()
    assert (found.theta[1][:, 0] == -math.inf).all()
    assert found.theta[0][101:, 0].isfinite().all()
    assert table.at(64, lookup="fitted").theta[1][129:].isfinite().all()
    post = make("post_softmax")
    theta = post.theta.clone()
    theta[:, 0, 1] = 0.0
    found = dataclasses.replace(post, theta=theta).at(100, lookup="fitted")
    assert (found.theta[0][:, 1] == -math.inf).all()


def test_at_hands_out_tensors_of_their_own() -> None:
    table = make(discarded_mass=torch.ones(len(K), LAYERS, HEADS, len(LENGTHS)))
    with torch.inference_mode():
        first = table.at(64)
    kept = first.theta[0].clone()
    for other in (table.at(64), table.at(128)):
        assert other.discarded_mass is not None
        for tensor in (*other.theta, *other.discarded_mass):
            tensor.fill_(5.0)
    assert torch.equal(first.theta[0], kept)
    first.theta[0].add_(1)  # an inference tensor would refuse that here
