from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from toptheta_npu.calibration import Moments
from toptheta_npu.errors import TopThetaValueError

CELLS = 4
numbers = st.floats(-1e4, 1e4, width=32)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    count = draw(st.integers(0, 30))
    values = draw(npst.arrays(np.float64, (2, count), elements=numbers))
    cells = draw(npst.arrays(np.int64, count, elements=st.integers(0, CELLS - 1)))
    return values, cells


def moments_of(values: np.ndarray, cells: np.ndarray) -> Moments:
    moments = Moments((2, CELLS))
    moments.update(values, cells)
    return moments


def assert_same(left: Moments, right: Moments) -> None:
    np.testing.assert_array_equal(left.count, right.count)
    np.testing.assert_allclose(left.mean, right.mean, rtol=1e-10, atol=1e-8)
    np.testing.assert_allclose(left.std(), right.std(), rtol=1e-6, atol=1e-6)


@given(batches())
def test_update_gives_mean_and_population_std_of_each_cell(batch: tuple[np.ndarray, np.ndarray]) -> None:
    values, cells = batch
    moments = moments_of(values, cells)
    for cell in range(CELLS):
        inside = values[:, cells == cell]
        assert (moments.count[:, cell] == inside.shape[1]).all()
        if inside.shape[1]:
            np.testing.assert_allclose(moments.mean[:, cell], inside.mean(axis=1), rtol=1e-9, atol=1e-7)
            np.testing.assert_allclose(moments.std()[:, cell], inside.std(axis=1), rtol=1e-6, atol=1e-6)


@given(batches(), batches(), batches())
def test_batches_add_up_to_the_whole(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], c: tuple[np.ndarray, np.ndarray]
) -> None:
    whole = moments_of(np.concatenate([a[0], b[0], c[0]], axis=1), np.concatenate([a[1], b[1], c[1]]))
    one_by_one = moments_of(*a)
    one_by_one.update(*b)
    one_by_one.update(*c)
    assert_same(one_by_one, whole)


def test_a_large_offset_does_not_cancel_the_variance() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(1, 1000))
    moments = Moments((1, 1))
    for part in np.split(noise + 1e9, 10, axis=1):
        moments.update(part, np.zeros(100, dtype=np.int64))
    np.testing.assert_allclose(moments.std(), noise.std(), rtol=1e-6)


def test_one_value_has_no_spread() -> None:
    moments = Moments((1, 2))
    moments.update(np.array([[3.5]]), np.array([1]))
    assert moments.mean.tolist() == [[0.0, 3.5]]
    assert moments.std().tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_must_be_finite(bad: float) -> None:
    moments = Moments((1, 1))
    with pytest.raises(TopThetaValueError, match="values: expected finite"):
        moments.update(np.array([[1.0, bad]]), np.array([0, 0]))
    assert moments.count.sum() == 0
