"""The quantile estimator: a share of the rows keeps at most k."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.calibration.test_calibrator import HEADS, calibrator_of, causal_rows, finish, full_rows
from toptheta_npu.calibration import Calibrator, SurvivalSketch, kth_largest
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdTable

QUANTILE: dict[str, Any] = {"estimator": "quantile", "quantile": 0.9}


def own_thresholds(scores: Tensor, k: int, placement: str) -> Tensor:
    """The rows' own thresholds [HEADS, rows], as scores or log-probabilities."""
    ranked = torch.stack([kth_largest(rows, [k])[:, 0] for rows in scores])
    return ranked if placement == "pre_softmax" else ranked - scores.logsumexp(dim=-1)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9, 0.99])
def test_a_share_of_the_rows_keeps_at_most_k(placement: str, quantile: float) -> None:
    scores, lengths = full_rows(0, rows=400, width=300, spread=1.0)
    settings: dict[str, Any] = {"longest": 300, "placement": placement, "estimator": "quantile", "quantile": quantile}
    table = finish(calibrator_of([(scores, lengths)], k=[8, 64], **settings))
    elements = scores if placement == "pre_softmax" else scores.softmax(dim=-1)
    for k in (8, 64):
        kept = (elements > table.at(k).rows(0, lengths).T[:, :, None]).sum(dim=-1)
        own = own_thresholds(scores, k, placement)
        # 112 bins over the range of the rows' own thresholds, at least half of them in use
        width = (own.amax(dim=1) - own.amin(dim=1)) / 56
        exact = own.double().quantile(quantile, dim=1)
        theta = table.at(k).rows(0, lengths[:1])[0].double()
        theta = theta if placement == "pre_softmax" else theta.log()
        assert (theta - exact).abs().le(width).all()
        assert ((kept <= k).double().mean(dim=1) - quantile).abs().max() < 0.04


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_the_share_lies_between_those_of_the_bins_edges(elements: list[float], share: float) -> None:
    values = torch.tensor(elements)
    sketch = SurvivalSketch(1, 1)
    sketch.update(values.view(1, -1, 1), torch.zeros(len(elements), dtype=torch.int64))
    theta = float(sketch.quantile(share)[0, 0])
    width = 2.0 ** int(sketch.exponents()[0, 0])
    rank = sorted(elements)[min(math.ceil(share * len(elements) - 1e-9), len(elements)) - 1]
    assert abs(theta - rank) <= width * (1 + 1e-9)


def test_shards_merge_to_the_same_bytes(tmp_path: Path) -> None:
    sequences = [causal_rows(seed, spread=1.0) for seed in range(6)]
    settings: dict[str, Any] = {"k": [4, 9], "layers": 2, **QUANTILE}
    merged = calibrator_of(sequences[4:], **settings)
    merged.merge(calibrator_of(sequences[:4], **settings))
    finish(merged).save(tmp_path / "left")
    finish(calibrator_of(sequences, **settings)).save(tmp_path / "right")
    assert (tmp_path / "left").read_bytes() == (tmp_path / "right").read_bytes()


def test_a_higher_quantile_keeps_less() -> None:
    rows = full_rows(0, rows=100, width=40, spread=1.0)
    low, high = (finish(calibrator_of([rows], estimator="quantile", quantile=each)).theta for each in (0.2, 0.8))
    assert (low < high).all()


def test_a_table_keeps_its_quantile(tmp_path: Path) -> None:
    table = finish(calibrator_of([causal_rows(0)], alpha=0.5, **QUANTILE))
    assert (table.quantile, table.alpha, table.bracket) == (0.9, 0.0, None)
    assert (table.std == 0).all()
    assert "quantile 0.9" in repr(table)
    table.save(tmp_path / "table")
    again = ThresholdTable.load(tmp_path / "table")
    assert (again.estimator, again.quantile) == ("quantile", 0.9)
    assert torch.equal(again.theta, table.theta)


def test_short_rows_and_layers_of_their_own_k_are_dense() -> None:
    table = finish(calibrator_of([causal_rows(0)], layers=2, layer_k=[64, 6], **QUANTILE))
    assert (table.theta[0, 0] == -math.inf).all()
    assert torch.equal(table.theta[0, 1, 0] > -math.inf, table.lengths > 6)


def test_memory_does_not_grow_with_the_sequences() -> None:
    calibrator = Calibrator(1, HEADS, k=[4, 8], longest=40, layer_k=[0], **QUANTILE)
    sizes = set()
    for seed in range(3):
        calibrator.observe(0, *causal_rows(seed))
        sizes.add(sum(sketch.counts.nbytes for sketch in calibrator._sketches[0]))
    assert sizes == {2 * HEADS * len(calibrator.settings.knots()) * 112 * 4}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"estimator": "quantile"}, TopThetaTypeError, "a number with estimator='quantile', got none"),
        ({"estimator": "quantile", "quantile": "0.9"}, TopThetaTypeError, "quantile: expected a number"),
        ({"estimator": "quantile", "quantile": True}, TopThetaTypeError, "quantile: expected a number"),
        ({"estimator": "quantile", "quantile": 0.0}, TopThetaValueError, "a number above 0 and below 1, got 0.0"),
        ({"estimator": "quantile", "quantile": 1.0}, TopThetaValueError, "a number above 0 and below 1, got 1.0"),
        ({"estimator": "quantile", "quantile": math.nan}, TopThetaValueError, "a number above 0 and below 1, got nan"),
        ({"quantile": 0.9}, TopThetaValueError, "quantile needs estimator='quantile'; leave it out"),
        ({"estimator": "pooled", "quantile": 0.9}, TopThetaValueError, "quantile needs estimator='quantile'"),
    ],
)  # fmt: skip
def test_a_quantile_goes_with_its_estimator(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Calibrator(1, 1, k=[4], longest=9, layer_k=[0], **options)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(TopThetaValueError, match="share: expected above 0 and below 1"):
        SurvivalSketch(1, 1).quantile(share)


def test_an_empty_cell_has_no_quantile() -> None:
    assert np.array_equal(SurvivalSketch(2, 3).quantile(0.5), np.full((2, 3), -np.inf))
