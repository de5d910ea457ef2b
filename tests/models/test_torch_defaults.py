"""What a process sets as torch's default dtype and device changes nothing of calibration and of sparsified models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.models.tiny import LOOKUP, generate, new_model, step_logits, tokens
from tests.test_torch_defaults import DEFAULTS, torch_default
from toptheta_npu.models import (
    GrowingCache,
    Int8Cache,
    calibrate,
    calibrate_cache_scales,
    calibrate_discarded_mass,
    sparsify,
)
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.thresholds import ThresholdTable

pytestmark = pytest.mark.usefixtures("no_grad")
TEXTS, PROMPT = tokens(3, 40, seed=1), tokens(2, 20, seed=7)
MASK = torch.ones(2, 20, dtype=torch.int64)
MASK[1, :3] = 0


def _tables(model: PreTrainedModel) -> list[ThresholdTable]:
    by_mean = calibrate(model, TEXTS, k=4, layer_k=[0, 6], placement="post_softmax", row_fraction=0.5)
    table = calibrate(
        model, TEXTS, k=[4, 8, 12], layer_k=[0, 0], top_k_at_calibration=False, estimator="pooled",
        placement="pre_softmax",
    )  # fmt: skip
    table = calibrate_cache_scales(model, calibrate_discarded_mass(model, table, TEXTS), TEXTS)
    return [by_mean, table]


def _numbers(table: ThresholdTable) -> Iterator[Tensor]:
    yield from (value for value in vars(table).values() if isinstance(value, Tensor))


def _runs(model: PreTrainedModel, by_mean: ThresholdTable, table: ThresholdTable) -> Iterator[Tensor]:
    with sparsify(model, table, k=5, statistics="summary") as run:
        yield generate(model, ids=PROMPT, attention_mask=MASK)
        for summary in run.summaries():
            yield from (value for value in vars(summary).values() if isinstance(value, Tensor))
    with sparsify(model, by_mean, k=4, prefill="thresholded", statistics=True) as run:
        yield step_logits(model, PROMPT, 10)
        for layer in run.statistics():
            yield from (layer.keys, layer.kept, layer.value_rows, layer.decode)
    with sparsify(model, table, k=8) as run:
        yield generate(model, ids=PROMPT[:1], **{CACHE_ARGUMENT: GrowingCache()}, **LOOKUP)
        run.set_k(4)
        yield step_logits(model, PROMPT[:1], 15, cache=Int8Cache(model.config, table=table))
    for sdc, cache in (("offline", None), ("exp_threshold", Int8Cache(model.config))):
        with sparsify(model, table, k=8, sdc=sdc):
            yield step_logits(model, PROMPT[:1], 15, cache=cache)


def _everything(model: PreTrainedModel) -> list[Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_mean, table = _tables(model)
        return [*_numbers(by_mean), *_numbers(table), *_runs(model, by_mean, table)]


@pytest.fixture(scope="module")
def expected() -> tuple[PreTrainedModel, list[Tensor]]:
    with torch.no_grad():
        return (model := new_model(initializer_range=0.3)), _everything(model)


@pytest.mark.parametrize("default", DEFAULTS, ids=str)
def test_calibration_and_generation_give_the_same_numbers(
    default: torch.dtype | torch.device, expected: tuple[PreTrainedModel, list[Tensor]]
) -> None:
    model, numbers = expected
    with torch_default(default):
        got = _everything(model)
    assert len(numbers) > 40
    for index, (one, other) in enumerate(zip(got, numbers, strict=True)):
        assert (one.dtype, one.device) == (other.dtype, other.device), index
        assert torch.equal(one.nan_to_num(), other.nan_to_num()), index
