"""The fit of all (k, layer, head) at once against one problem after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdTable

K, LENGTHS = (8, 32), (9, 20, 33, 50, 128, 400, 1000)


def make(draw: np.random.Generator, placement: str, **changes: Any) -> ThresholdTable:
    shape = (len(K), 2, 3, len(LENGTHS))
    theta = draw.normal(size=shape) if placement == "pre_softmax" else draw.uniform(1e-6, 1, size=shape)
    fields: dict[str, Any] = {
        "theta": torch.from_numpy(theta.astype(np.float32)), "k": torch.tensor(K), "lengths": torch.tensor(LENGTHS),
        "counts": torch.from_numpy(draw.integers(0, 50, size=shape[1:])), "std": torch.zeros(shape),
        "placement": placement, "estimator": "pooled", "alpha": 0.0, "layer_k": (0, 40), "fingerprint": "model",
    }  # fmt: skip
    fields["counts"][..., -1] = 3
    return ThresholdTable(**{**fields, **changes})


def one_by_one(table: ThresholdTable, index: tuple[int, int, int]) -> np.ndarray:
    """Coefficients of one problem, by a plain least-squares call."""
    n, line = table.lengths.double().numpy(), table.theta[index].double().numpy()
    weights = table.counts[index[1:]].double().numpy()
    columns = [np.ones_like(n), 1 / n, np.log(n)]
    if table.placement == "post_softmax":
        line, columns = np.log(line), [columns[0], columns[2]]
    used = (weights > 0) & (n > max(K[index[0]], table.layer_k[index[1]]))
    basis = np.stack(columns, axis=1)[used, : used.sum()]
    root = np.sqrt(weights[used])
    solution = np.linalg.lstsq(basis * root[:, None], line[used] * root, rcond=None)[0]
    return np.pad(solution, (0, len(columns) - len(solution)))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["pre_softmax", "post_softmax"]))
@settings(max_examples=30, deadline=None)
def test_all_problems_at_once_are_the_problems_one_by_one(seed: int, placement: str) -> None:
    table = make(np.random.default_rng(seed), placement)
    fit = table.fit()
    for index in np.ndindex(len(K), 2, 3):
        coefficients = one_by_one(table, index)
        scale = np.abs(coefficients).max()
        np.testing.assert_allclose(fit.coefficients[index], coefficients, rtol=1e-8, atol=1e-9 * scale)


def test_heads_without_thresholds_and_flat_ones() -> None:
    table = make(np.random.default_rng(0), "pre_softmax")
    theta = table.theta.clone()
    theta[:, 0, 0] = -math.inf
    theta[:, 0, 1] = 0.7
    theta[0, 0, 2, :6] = -math.inf
    fit = make(np.random.default_rng(0), "pre_softmax", theta=theta).fit()
    assert (fit.coefficients[:, 0, 0, 0] == -math.inf).all()
    assert (fit.coefficients[:, 0, 0, 1:] == 0).all()
    torch.testing.assert_close(fit.predict(LENGTHS)[:, 0, 1], theta[:, 0, 1])
    # one point: its own value
    assert fit.coefficients[0, 0, 2].tolist() == pytest.approx([theta[0, 0, 2, 6].item(), 0, 0])


@pytest.mark.parametrize("lengths", [(9, 20, 33, 50, 128, 400, 1000), (4_000_000, 4_000_001, 4_000_002)])
def test_lengths_close_together_do_not_upset_the_fit(lengths: tuple[int, ...]) -> None:
    n = torch.tensor(lengths)
    shape = (1, 1, 1, len(n))
    theta = (1.5 + 0.25 * n.double().log()).float().view(shape)
    table = ThresholdTable(
        theta=theta, k=torch.tensor([8]), lengths=n, counts=torch.ones(1, 1, len(n)).long(), std=torch.zeros(shape),
        placement="pre_softmax", estimator="pooled", alpha=0.0, layer_k=(0,), fingerprint="model",
    )  # fmt: skip
    torch.testing.assert_close(table.fit().predict(n), theta, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", [[60, 9], (60, 9), np.array([60, 9]), torch.tensor([60, 9], dtype=torch.int32)])
def test_lengths_may_be_a_list_an_array_or_a_tensor(lengths: Any) -> None:
    fit = make(np.random.default_rng(0), "pre_softmax").fit()
    assert torch.equal(fit.predict(lengths), fit.predict(torch.tensor([60, 9])))


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([3.5], TopThetaTypeError, r"lengths: expected integers \[N\], got \[3.5\]"),
        ([True], TopThetaTypeError, "lengths: expected integers"),
        (None, TopThetaTypeError, "lengths: expected integers"),
        (3, TopThetaTypeError, "lengths: expected integers"),
        (torch.tensor([[3]]), TopThetaTypeError, "lengths: expected integers"),
        ([9, 0], TopThetaValueError, "lengths: expected numbers of at least 1, got 0"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths: Any, error: type[Exception], message: str) -> None:
    fit = make(np.random.default_rng(0), "pre_softmax").fit()
    with pytest.raises(error, match=message):
        fit.predict(lengths)
