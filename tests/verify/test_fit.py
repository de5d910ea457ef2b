"""The fit finds constants that were planted in modelled times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from tests.tiers import full
from tests.verify.modelled_device import PLANTED, model_runs
from toptheta_npu.timing.host_model import ModelledRun, known_constants
from toptheta_npu.timing.shapes import check_for_device
from toptheta_npu.verify.fit import FREE, fit
from toptheta_npu.verify.gather_mask import verdict
from toptheta_npu.verify.times import SHAPES, modelled

LAUNCH, SYNC_ALL = (
    next(each for each in FREE if name in each.sets) for name in ("launch_microseconds", "sync_all_microseconds")
)


@pytest.fixture(scope="module")
def runs() -> list[ModelledRun]:
    return model_runs()


@full
def test_planted_constants_are_found(runs: Sequence[ModelledRun]) -> None:
    planted = modelled(runs, PLANTED)
    fitted = fit(lambda constants: modelled(runs, constants), planted, FREE)
    assert {name: constant.value for name, constant in fitted.constants.items()} == pytest.approx(PLANTED, rel=0.05)
    assert fitted.spread < 0.005
    assert fitted.modelled == pytest.approx(planted, rel=0.02)
    said = verdict(fitted.constants["gather_mask_repeat"])
    assert re.fullmatch(r"GatherMask takes 1[23]\.?\d* ± \S+ cycles a repeat, the figure of pto-isa \(14\)\.", said)


def test_standard_errors_cover_the_noise() -> None:
    """Of 200 draws, about two thirds lie within one standard error."""
    work = torch.linspace(1, 60, 16, dtype=torch.float64)
    free = (LAUNCH, replace(SYNC_ALL, start=1.0))

    def model(constants: Mapping[str, float]) -> list[float]:
        return (constants["launch_microseconds"] + constants["sync_all_microseconds"] * work).tolist()

    right = torch.tensor(model({"launch_microseconds": 9.0, "sync_all_microseconds": 1.3}), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    inside = 0
    for _ in range(200):
        noise = torch.randn(16, generator=generator, dtype=torch.float64)
        constant = fit(model, (right * (1 + 0.03 * noise)).tolist(), free).constants["launch_microseconds"]
        inside += abs(constant.value - 9.0) < constant.standard_error
    assert 110 < inside < 160


def test_a_constant_cannot_fall_below_0() -> None:
    fitted = fit(lambda constants: [constants["launch_microseconds"] + 5.0] * 3, [4.0, 4.0, 4.0], [LAUNCH])
    assert fitted.constants["launch_microseconds"].value == 0


def test_there_are_twenty_shapes_that_the_kernel_takes() -> None:
    assert len(set(SHAPES)) == 20
    assert {shape.group for shape in SHAPES} == {1, 4, 8}
    assert {shape.group for shape in SHAPES if shape.query_tokens == 4} == {1, 4}
    for shape in SHAPES:
        check_for_device(shape, "npu")


def test_every_free_constant_is_one_of_the_model() -> None:
    assert {name for each in FREE for name in each.sets} <= known_constants()
