"""Memory kept between decode steps: no answer lies in it, and modes and threads do not disturb each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import toptheta_npu
from tests.cases import Case
from tests.helpers import make_inputs
from toptheta_npu.fallback import scratch as module
from toptheta_npu.fallback.scratch import scratch

CPU = torch.device("cpu")
_OPERATORS: tuple[Callable[..., Any], ...] = (
    toptheta_npu.incremental_attention,
    toptheta_npu.incremental_attention_with_stats,
    toptheta_npu.incremental_attention_partial,
)


def results(operator: Callable[..., Any], seed: int, dtype: str = "float32", path: str = "auto") -> list[Tensor]:
    case = Case("large", dtype, heads=8, head_dim=128, lengths=(6000, 5000), keep=0.1)
    arguments = make_inputs(case, seed=seed).arguments
    if operator is toptheta_npu.incremental_attention_partial:
        del arguments["sdc"]
    answer = operator(**arguments, _path=path)
    return [answer] if isinstance(answer, Tensor) else list(answer)


@pytest.mark.parametrize("operator", _OPERATORS, ids=lambda operator: operator.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("path", ["gather", "dense"])
def test_a_later_step_leaves_earlier_answers_alone(operator: Callable[..., Any], dtype: str, path: str) -> None:
    first = results(operator, 1, dtype, path)
    copies = [answer.clone() for answer in first]
    second = results(operator, 2, dtype, path)
    assert not torch.equal(first[0], second[0])
    assert all(torch.equal(answer, copy) for answer, copy in zip(first, copies, strict=True))


def test_memory_is_kept_and_grows() -> None:
    small = scratch("test", (100, 1000), torch.float32, CPU)
    same = scratch("test", (1000, 100), torch.float32, CPU)
    larger = scratch("test", (3, 100, 1000), torch.bfloat16, CPU)
    assert small.data_ptr() == same.data_ptr() != larger.data_ptr()
    assert scratch("test", (7, 100, 100), torch.int32, CPU).data_ptr() == larger.data_ptr()
    assert scratch("other", (100, 1000), torch.float32, CPU).data_ptr() != larger.data_ptr()
    assert (larger.shape, larger.dtype) == ((3, 100, 1000), torch.bfloat16)


def test_small_and_huge_tensors_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 1 << 20)
    scratch("unkept", (10, 10), torch.float32, CPU)
    scratch("unkept", (1 << 20,), torch.float32, CPU)
    assert "unkept" not in module._BUFFERS.named


def test_after_inference_mode() -> None:
    module._BUFFERS.named.clear()
    with torch.inference_mode():
        scratch("modes", (1 << 20,), torch.float32, CPU)
    assert not module._BUFFERS.named["modes"].is_inference()
    assert scratch("modes", (1 << 20,), torch.float32, CPU).fill_(1.0).sum() == 1 << 20


def test_threads_have_memory_of_their_own() -> None:
    key, value = torch.randn(2, 1, 8, 6000, 64)
    queries, threshold = torch.randn(4, 1, 8, 1, 64), torch.full((8,), 2.0)

    def steps(query: Tensor) -> list[Tensor]:
        return [toptheta_npu.incremental_attention(query, key, value, threshold) for _ in range(100)]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(steps, queries))
    for query, repeated in zip(queries, answers, strict=True):
        expected = toptheta_npu.incremental_attention(query, key, value, threshold)
        for answer in repeated:
            torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-6)
