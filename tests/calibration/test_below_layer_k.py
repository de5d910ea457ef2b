"""Layers that are calibrated for k below their least k, as budgets need."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.calibration.parts import ESTIMATORS, LAYERS, content_of, finish, observed, rows
from toptheta_npu.calibration import Calibrator
from toptheta_npu.calibration.state import CalibrationState
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdTable

OPTIONS: dict[str, Any] = {"k": [3, 5, 8], "layer_k": [6, 0]}


def calibrated(**options: Any) -> ThresholdTable:
    return finish(observed(range(4), **{**OPTIONS, **options}))


def with_mass(**options: Any) -> ThresholdTable:
    """A table with the second pass over the same rows."""
    calibrator = observed(range(4), **{**OPTIONS, **options})
    table = finish(calibrator)
    for seed in range(4):
        for layer in range(LAYERS):
            calibrator.observe_discarded(layer, *rows(seed + 100 * layer), table)
    return calibrator.with_discarded_mass(table)


def assert_same_numbers(ours: ThresholdTable, theirs: ThresholdTable) -> None:
    for field in dataclasses.fields(ours):
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(mine, Tensor):
            assert torch.equal(mine, other), field.name


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_k_is_calibrated_in_every_layer_as_if_there_were_no_least_k(estimator: str, placement: str) -> None:
    options = {"estimator": estimator, "placement": placement}
    table = calibrated(**options, below_layer_k=True)
    assert_same_numbers(table, calibrated(**options, layer_k=[0, 0]))
    assert (table.layer_k, table.calibrated_layer_k) == ((6, 0), (0, 0))
    assert table.calibrated_targets.tolist() == [[3, 3], [5, 5], [8, 8]]
    assert table.layer_targets(3) == [6, 3]
    assert table.at(3).layer_targets == (6, 3)
    assert table.at(head_k=[[3, 8], [5, 4]]).theta[0][4:, 0].isfinite().all()


def test_without_it_layers_are_calibrated_from_their_least_k_on() -> None:
    table = calibrated()
    assert table.calibrated_layer_k == table.layer_k == (6, 0)
    assert torch.equal(table.theta[0, 0], table.theta[1, 0])
    with pytest.raises(TopThetaValueError, match=r"head_k\[0, 1\]: expected 6 to 8.*or with below_layer_k=True"):
        table.at(head_k=[[6, 5], [3, 3]])


def test_the_second_pass_is_of_the_same_k_as_the_thresholds() -> None:
    below = with_mass(below_layer_k=True)
    assert_same_numbers(below, with_mass(layer_k=[0, 0]))
    assert below.discarded_mass is not None
    # of k = 3 in a layer that keeps at least 6: rows of 4 to 6 keys, too
    assert (below.discarded_mass[0, 0][:, (below.lengths > 3) & (below.lengths <= 6)] > 0).all()
    found = below.at(head_k=[[3, 8], [5, 4]]).discarded_mass
    assert found is not None
    assert (found[0][4:, 0] > 0).all()


def test_a_state_keeps_it_and_other_shards_are_refused(tmp_path: Path) -> None:
    calibrator = observed(range(2), **OPTIONS, below_layer_k=True)
    state = CalibrationState(calibrator=calibrator, fingerprint="model", dtype="float32", run={}, provenance={})
    state.save(tmp_path / "state")
    again = CalibrationState.load(tmp_path / "state").calibrator
    assert content_of(finish(again), tmp_path / "one") == content_of(finish(calibrator), tmp_path / "two")
    with pytest.raises(TopThetaValueError, match=r"other: expected a calibrator with below_layer_k=True, got .*=False"):
        calibrator.merge(observed(range(2), **OPTIONS))


def test_a_file_keeps_both_numbers(tmp_path: Path) -> None:
    calibrated(below_layer_k=True).save(tmp_path / "table")
    table = ThresholdTable.load(tmp_path / "table")
    assert (table.layer_k, table.calibrated_layer_k) == ((6, 0), (0, 0))


def test_a_least_k_beyond_all_k_says_which_k_to_add() -> None:
    with pytest.raises(TopThetaValueError) as caught:
        Calibrator(2, 1, k=[4, 8], longest=40, layer_k=[12, 0], below_layer_k=True)
    assert str(caught.value) == (
        "k: expected k up to 12, the largest layer_k, with below_layer_k=True, got [4, 8]; add k=12, or lower layer_k"
    )
    Calibrator(2, 1, k=[4, 8, 12], longest=40, layer_k=[12, 0], below_layer_k=True)
    with pytest.raises(TopThetaTypeError, match="below_layer_k: expected True or False, got 1"):
        Calibrator(2, 1, k=[4], longest=40, layer_k=[0, 0], below_layer_k=1)  # type: ignore[arg-type]
