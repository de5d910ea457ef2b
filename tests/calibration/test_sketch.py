from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from toptheta_npu.calibration import SurvivalSketch, blocks
from toptheta_npu.calibration.bins import BINS, MINIMUM_EXPONENT
from toptheta_npu.errors import TopThetaValueError

HEADS, BUCKETS = 2, 3
elements = st.one_of(st.floats(-1e6, 1e6, width=32), st.floats(-2, 2, width=32), st.just(float("-inf")), st.just(0.0))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows, width = draw(st.integers(0, 6)), draw(st.integers(1, 8))
    values = draw(npst.arrays(np.float32, (HEADS, rows, width), elements=elements))
    buckets = draw(npst.arrays(np.int64, rows, elements=st.integers(0, BUCKETS - 1)))
    return torch.from_numpy(values), torch.from_numpy(buckets)


def sketch_of(*parts: tuple[Tensor, Tensor]) -> SurvivalSketch:
    made = SurvivalSketch(HEADS, BUCKETS)
    for values, buckets in parts:
        made.update(values, buckets)
    return made


def assert_same_state(left: SurvivalSketch, right: SurvivalSketch) -> None:
    np.testing.assert_array_equal(left.exponents(), right.exponents())
    np.testing.assert_array_equal(left.smallest, right.smallest)
    np.testing.assert_array_equal(left.largest, right.largest)
    np.testing.assert_array_equal(left.counts, right.counts)
    np.testing.assert_array_equal(left.rows, right.rows)


@given(batches(), batches(), batches(), st.randoms())
def test_the_state_depends_on_the_elements_alone(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], c: tuple[Tensor, Tensor], random: object
) -> None:
    whole = sketch_of(a, b, c)
    assert_same_state(sketch_of(c, a, b), whole)
    merged = sketch_of(b)
    merged.merge(sketch_of(c, a))
    assert_same_state(merged, whole)
    order = list(range(len(a[1])))
    random.shuffle(order)  # type: ignore[attr-defined]
    row_by_row = sketch_of(b, c, *((a[0][:, i : i + 1], a[1][i : i + 1]) for i in order))
    assert_same_state(row_by_row, whole)


def slow_state(cell: list[float]) -> tuple[int, list[int]]:
    """Exponent and counts from exact arithmetic, straight from the definition."""
    visible = [Fraction(value) for value in cell if value > -math.inf]
    if not visible:
        return MINIMUM_EXPONENT, [0] * BINS
    exponent = MINIMUM_EXPONENT
    while True:
        width = Fraction(2) ** exponent
        bins = [math.floor(value / width) for value in visible]
        if max(bins) - min(bins) < BINS:
            break
        exponent += 1
    counts = [0] * BINS
    for index in bins:
        counts[index - min(bins)] += 1
    return exponent, counts


@given(batches())
def test_bins_are_those_of_the_definition(batch: tuple[Tensor, Tensor]) -> None:
    values, buckets = batch
    made = sketch_of(batch)
    for head in range(HEADS):
        for bucket in range(BUCKETS):
            exponent, counts = slow_state(values[head, buckets == bucket].flatten().tolist())
            assert made.exponents()[head, bucket] == exponent
            assert made.counts[head, bucket].tolist() == counts
    assert made.rows.tolist() == buckets.bincount(minlength=BUCKETS).tolist()


def test_tiny_numbers_keep_their_sign_in_wide_bins() -> None:
    cell = [-1e-45, 1e-45, 0.0, -1e-30, 1e6]
    values = torch.tensor(cell).expand(HEADS, 1, -1)
    assert values[0, 0, 0] < 0
    exponent, counts = slow_state(values[0, 0].tolist())
    made = sketch_of((values, torch.tensor([0])))
    assert made.exponents()[0, 0] == exponent
    assert made.counts[0, 0].tolist() == counts


def test_blocks_do_not_show_in_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(HEADS, 50, 20, generator=generator)
    buckets = torch.randint(BUCKETS, (50,), generator=generator)
    whole = sketch_of((values, buckets))
    monkeypatch.setattr(blocks, "_SCORES_PER_BLOCK", 130)
    assert_same_state(sketch_of((values, buckets)), whole)


@given(batches(), batches())
def test_some_buckets_are_merged_by_their_numbers(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> None:
    made = sketch_of(a)
    part, buckets = SurvivalSketch.of([(slice(None), b[0])], b[1].numpy())
    assert buckets.tolist() == sorted(set(b[1].tolist()))
    made.merge(part, buckets)
    assert_same_state(made, sketch_of(a, b))


@pytest.mark.parametrize("scale", [2.0**-30, 1.0, 2.0**60])
def test_hidden_places_may_lie_anywhere(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values = scale * torch.randn(HEADS, 5, 60, generator=generator)
    values[torch.rand(values.shape, generator=generator) < 0.3] = -math.inf
    buckets = torch.tensor([0, 2, 2, 0, 2])
    made = sketch_of((values, buckets))
    for head in range(HEADS):
        for bucket in range(BUCKETS):
            exponent, counts = slow_state(values[head, buckets == bucket].flatten().tolist())
            assert made.exponents()[head, bucket] == exponent
            assert made.counts[head, bucket].tolist() == counts


def gaussian(generator: torch.Generator, rows: int) -> Tensor:
    return torch.randn(16, rows, 2048, generator=generator)


def shifted(generator: torch.Generator, rows: int) -> Tensor:
    return gaussian(generator, rows) + torch.randn(16, rows, 1, generator=generator)


def skewed(generator: torch.Generator, rows: int) -> Tensor:
    return torch.exp(0.5 * gaussian(generator, rows))


def log_probabilities(generator: torch.Generator, rows: int) -> Tensor:
    return (3 * gaussian(generator, rows)).log_softmax(dim=-1)


@pytest.mark.parametrize("make", [gaussian, shifted, skewed, log_probabilities])
@pytest.mark.parametrize(("rows", "tolerance"), [(64, 0.01), (8, 0.04)])
def test_k_elements_are_kept_on_average(
    make: Callable[[torch.Generator, int], Tensor], rows: int, tolerance: float
) -> None:
    values = make(torch.Generator().manual_seed(0), rows)
    made = SurvivalSketch(16, 1)
    made.update(values, torch.zeros(rows, dtype=torch.int64))
    for k in (32, 64, 128, 256, 512, 1024):
        found = made.theta(k)
        kept = (values > torch.from_numpy(found)[:, :, None]).sum(dim=(1, 2)) / rows
        error = kept / k - 1
        assert error.square().mean().sqrt() <= tolerance
        # What is left is chance within a bin, not a bias of the interpolation.
        assert abs(error.mean()) <= 0.6 * tolerance


@given(batches())
def test_theta_falls_as_k_grows(batch: tuple[Tensor, Tensor]) -> None:
    made = sketch_of(batch)
    thetas = np.array([made.theta(k) for k in range(1, 12)])
    assert (thetas[1:] <= thetas[:-1]).all()


def test_rows_with_too_few_elements_and_empty_cells_are_dense() -> None:
    values = torch.full((HEADS, 2, 8), -math.inf)
    values[:, :, :3] = torch.tensor([1.0, 2.0, 3.0])
    made = sketch_of((values, torch.tensor([1, 1])))
    assert made.counts.sum() == HEADS * 2 * 3
    assert (made.theta(3) == -math.inf).all()
    assert (made.theta(2)[:, 1] > 0.9).all()
    assert (made.theta(2)[:, [0, 2]] == -math.inf).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, torch.finfo(torch.float32).min, 2.0**101])
def test_bad_values_are_refused_and_change_nothing(bad: float) -> None:
    good = torch.randn(HEADS, 4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 2, 1])
    made, reference = sketch_of(good), sketch_of(good)
    values = good[0].clone()
    values[1, 3, 5] = bad
    with pytest.raises(TopThetaValueError, match=r"values: expected numbers within .* mask with -inf"):
        made.update(values, good[1])
    assert_same_state(made, reference)


def test_counts_never_wrap_around() -> None:
    batch = torch.zeros(HEADS, 1, 4), torch.tensor([0])
    made = sketch_of(batch)
    made.counts[:, 0, 0] = 2**32 - 3
    with pytest.raises(TopThetaValueError, match="lower row_fraction"):
        made.update(*batch)
    with pytest.raises(TopThetaValueError, match="lower row_fraction"):
        made.merge(sketch_of(batch))
    assert (made.counts[:, 0, 0] == 2**32 - 3).all()
