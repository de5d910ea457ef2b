"""Drawn schedules against a replay of each request by transformers, chunk by chunk as vLLM scheduled it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.serving.engines import make_engine
from benchmarks.serving.schedules import draw_schedule, run_schedule, wrong_in

SCHEDULES = 10


@pytest.fixture(scope="module")
def small() -> Any:
    """A cache of 40 pages, so that requests are preempted."""
    return make_engine({"k": 64}, num_gpu_blocks_override=40, max_num_batched_tokens=256, max_model_len=1024)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_token_of_a_drawn_schedule_is_wrong(small: Any, seed: int) -> None:
    requests = run_schedule(small, draw_schedule(seed))
    assert not [wrong for request in requests for wrong in wrong_in(request, k=64, vmc=False)]


def test_some_schedules_preempt(small: Any) -> None:
    requests = [request for seed in range(3) for request in run_schedule(small, draw_schedule(seed))]
    assert any(request.preemptions for request in requests)
