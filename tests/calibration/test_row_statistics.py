from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from toptheta_npu.calibration import kth_largest, row_statistics, sample_rows
from toptheta_npu.errors import TopThetaValueError

scores = st.one_of(st.floats(-100, 100, width=32), st.just(float("-inf")), st.sampled_from([0.0, 1.0]))
matrices = npst.array_shapes(min_dims=2, max_dims=2, max_side=12).flatmap(
    lambda shape: npst.arrays(np.float32, shape, elements=scores)
)


@given(matrices, st.lists(st.integers(0, 14), min_size=1, max_size=5))
def test_equals_sorting(rows: np.ndarray, ranks: list[int]) -> None:
    descending = -np.sort(-rows, axis=1)
    want = [descending[:, rank] if rank < rows.shape[1] else np.full(len(rows), -np.inf, np.float32) for rank in ranks]
    before = rows.copy()
    got = kth_largest(torch.from_numpy(rows), ranks)
    np.testing.assert_array_equal(got.numpy(), np.stack(want, axis=1))
    np.testing.assert_array_equal(rows, before)


def test_strictly_greater_keeps_exactly_k() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(64 * 300, generator=generator).float().view(64, 300)
    ranks = [1, 17, 128, 299]
    kept = (rows[:, :, None] > kth_largest(rows, ranks)[:, None, :]).sum(dim=1)
    assert kept.unique(dim=0).tolist() == [ranks]


def test_rows_beyond_one_pass_are_all_done(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(23, 10, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(row_statistics, "_ELEMENTS_PER_PASS", 40)
    torch.testing.assert_close(kth_largest(rows, [3])[:, 0], rows.topk(4).values[:, 3], rtol=0, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("count", [1, 5, 8])
@pytest.mark.parametrize("ranks", [[0], [6], [0, 6], [20]])
def test_nan_and_overflow_are_refused_wherever_they_are(bad: float, count: int, ranks: list[int]) -> None:
    rows = torch.zeros(3, 8)
    rows[1, torch.randperm(8)[:count]] = bad
    with pytest.raises(TopThetaValueError, match="rows: expected finite"):
        kth_largest(rows, ranks)


@given(st.integers(0, 200), st.floats(0.001, 1.0), st.integers(0, 2**32))
def test_a_sample_is_ascending_without_repeats_and_reproducible(count: int, fraction: float, seed: int) -> None:
    rows = sample_rows(count, fraction, torch.Generator().manual_seed(seed))
    again = sample_rows(count, fraction, torch.Generator().manual_seed(seed))
    assert rows.dtype == torch.int64
    assert rows.tolist() == again.tolist() == sorted(set(rows.tolist()))
    assert set(rows.tolist()) <= set(range(count))
    assert abs(len(rows) - fraction * count) <= 1


def test_the_fraction_is_honoured_on_average_and_for_every_row() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = [sample_rows(7, 0.35, generator) for _ in range(4000)]
    assert {len(rows) for rows in samples} == {2, 3}
    hits = torch.cat(samples).bincount(minlength=7) / 4000
    # 5 standard deviations of a frequency over 4000 draws
    torch.testing.assert_close(hits, torch.full((7,), 0.35), rtol=0, atol=0.04)
