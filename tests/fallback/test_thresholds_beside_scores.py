"""Thresholds that lie beside a score see a sample whose window is off by one key, as those in wide gaps do not."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.cases import SAMPLED_CASES, Case
from tests.helpers import make_inputs, of_rows
from toptheta_npu import incremental_attention_with_stats, use_backend
from toptheta_npu.fallback import sampled
from toptheta_npu.fallback.sampled import FIRST, NEWEST, STRIDED, Sample, sampled_keys

_BESIDE = [case for case in SAMPLED_CASES if case.theta == "beside"]
_KEYS = torch.arange(FIRST + STRIDED + NEWEST)
_IS_FIRST, _IS_NEWEST = _KEYS < FIRST, _KEYS >= FIRST + STRIDED
_WINDOWS = {"first": _IS_FIRST, "strided": ~_IS_FIRST & ~_IS_NEWEST, "newest": _IS_NEWEST}


def _shifted(window: str, by: int) -> Callable[[Tensor], Sample]:
    def sample_of(counts: Tensor) -> Sample:
        sample = sampled_keys(counts)
        places = (sample.places + by * _WINDOWS[window]).clamp_min(0)
        return sample._replace(places=places.minimum(counts.unsqueeze(-1) - 1))

    return sample_of


def _rounded_up(counts: Tensor) -> Sample:
    sample = sampled_keys(counts)
    between = counts.unsqueeze(-1) - FIRST - NEWEST
    strided = FIRST - -(_KEYS - FIRST) * between // STRIDED
    return sample._replace(places=torch.where(_WINDOWS["strided"], strided, sample.places))


_DEFECTS = {f"{window} by {by}": _shifted(window, by) for window in _WINDOWS for by in (-1, 1)}


@pytest.mark.parametrize("sample", [*_DEFECTS.values(), _rounded_up], ids=[*_DEFECTS, "rounded up"])
def test_a_window_that_is_off_by_one_key_is_seen(sample: Callable[[Tensor], Sample]) -> None:
    for case in _BESIDE:
        rows = _rows_with_another_selection(case, sample)
        assert rows > 0, case.id


@pytest.mark.parametrize("n", [401, 500, 1000, 65_536, 1_000_003])
def test_the_sample_is_the_one_of_the_method(n: int) -> None:
    strided = [16 + j * (n - 144) // 256 for j in range(256)]
    assert sampled_keys(torch.tensor(n)).places.tolist() == [*range(16), *strided, *range(n - 1, n - 129, -1)]


def _rows_with_another_selection(case: Case, sample: Callable[[Tensor], Sample]) -> int:
    inputs = make_inputs(case)
    with use_backend("fallback"), mock.patch.object(sampled, "sampled_keys", sample):
        kept = incremental_attention_with_stats(**inputs.arguments)[2]
    return int((of_rows(case, kept).long() != inputs.expected.kept).sum())
