"""The passes of calibration in C++ say the same as those in PyTorch, bit by bit, whatever the rows hold."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import toptheta_npu
from toptheta_npu.calibration import CalibrationSettings, Calibrator, SurvivalSketch
from toptheta_npu.calibration import counting as plain
from toptheta_npu.calibration.bins import BINS, MINIMUM_EXPONENT
from toptheta_npu.cpu import counting as native
from toptheta_npu.errors import TopThetaValueError

FINEST = 2.0**-MINIMUM_EXPONENT
LARGE = float(np.float32(2.0**100) * np.float32(1 - 2.0**-24))
visible = st.one_of(
    st.floats(-LARGE, LARGE, width=32), st.floats(-2, 2, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-30, -1e-30, 1.0, -1.0, LARGE, -LARGE]),
)  # fmt: skip
elements = visible | st.just(-math.inf)
shapes = st.tuples(st.integers(1, 5), st.integers(1, 70))


def sketches(values: torch.Tensor, buckets: torch.Tensor) -> list[SurvivalSketch]:
    """The same rows in a sketch by either form."""
    made = []
    for backend in ("native", "fallback"):
        with toptheta_npu.use_backend(backend, device="cpu"):  # type: ignore[arg-type]
            made.append(SurvivalSketch(len(values), 3))
            made[-1].update(values, buckets)
    return made


def test_both_forms_and_the_bins_have_as_many_counters() -> None:
    header = (Path(native.__file__).parent / "source" / "counting.h").read_text()
    (counters,) = re.findall(r"constexpr int kCounters = (\d+);", header)
    assert int(counters) == native.COUNTERS == BINS + 1


@pytest.mark.usefixtures("each_level")
def test_ranges() -> None:
    @given(npst.arrays(np.float32, shapes, elements=elements | st.sampled_from([math.nan, math.inf])))
    def check(rows: np.ndarray) -> None:
        low, high = native.row_ranges(rows)
        want_low, want_high = plain.row_ranges(rows)
        np.testing.assert_array_equal(high, want_high)
        good = ~np.isnan(high)
        np.testing.assert_array_equal(low[good], want_low[good])

    check()


@pytest.mark.usefixtures("each_level")
def test_sketches_of_drawn_rows() -> None:
    @given(st.data(), shapes)
    def check(data: st.DataObject, shape: tuple[int, int]) -> None:
        values = data.draw(npst.arrays(np.float32, (2, *shape), elements=elements))
        buckets = data.draw(npst.arrays(np.int64, shape[0], elements=st.integers(0, 2)))
        mine, theirs = sketches(torch.from_numpy(values), torch.from_numpy(buckets))
        for name in ("rows", "counts", "smallest", "largest"):
            assert getattr(mine, name).tobytes() == getattr(theirs, name).tobytes(), name

    check()


@pytest.mark.usefixtures("each_level")
@pytest.mark.parametrize("exponent", [-20, -3, 0, 1, 12, 90])
@pytest.mark.parametrize("width", [1, 511, 512, 513, 2048])
def test_counts_of_whole_rows(exponent: int, width: int) -> None:
    """Every bin, its edges and what lies just beside them; hidden places too."""
    generator = np.random.default_rng(0)
    first = -50
    edges = (np.float32(first) + np.arange(BINS + 1, dtype=np.float32)) * np.float32(2.0**exponent)
    near = np.concatenate([edges[:-1], np.nextafter(edges[1:], -np.inf), [-np.inf]]).astype(np.float32)
    rows = generator.choice(near, size=(6, width)).astype(np.float32)
    cells = np.array([2, 0, 1, 1, 0, 2])
    scale, firsts = np.full(6, 2.0**-exponent, np.float32), np.full(6, first, np.float32)
    counts = native.count(rows, cells, scale, firsts, FINEST, 3)
    np.testing.assert_array_equal(counts, plain.count(rows, cells, scale, firsts, FINEST, 3))
    assert counts.sum() == (rows > -np.inf).sum()


def test_strided_rows_are_taken_as_they_are() -> None:
    values = torch.randn(2, 10, 40, generator=torch.Generator().manual_seed(0))
    for view in (values[:, 2:7], values[:, ::2], values[..., ::3], values.transpose(1, 2)):
        mine, theirs = sketches(view, torch.zeros(view.shape[1], dtype=torch.int64))
        assert np.array_equal(mine.counts, theirs.counts)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2.0**101, -(2.0**101)])
def test_bad_values_are_refused_by_both(bad: float) -> None:
    values = torch.zeros(1, 1, 40)
    for place in (0, 17, 39):
        for backend in ("native", "fallback"):
            with toptheta_npu.use_backend(backend, device="cpu"), pytest.raises(TopThetaValueError, match="2\\*\\*100"):  # type: ignore[arg-type]
                SurvivalSketch(1, 1).update(values.index_fill(2, torch.tensor([place]), bad), torch.tensor([0]))


def test_a_table_does_not_tell_which_form_made_it(tmp_path: Path) -> None:
    scores = torch.randn(2, 40, 60, generator=torch.Generator().manual_seed(0))
    contents = []
    for backend in ("native", "fallback"):
        with toptheta_npu.use_backend(backend, device="cpu"):  # type: ignore[arg-type]
            calibrator = Calibrator(
                CalibrationSettings(num_layers=1, num_heads=2, k=[4, 9], longest=60, layer_k=[0], estimator="pooled")
            )
            calibrator.observe(0, scores, torch.full((40,), 60))
            calibrator.finish(fingerprint="model", provenance={}).save(tmp_path / "table")
        contents.append((tmp_path / "table").read_bytes())
    assert contents[0] == contents[1]
