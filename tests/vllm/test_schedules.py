"""Drawn schedules against a replay of each request by transformers, chunk by chunk as vLLM scheduled it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.serving.engines import make_engine
from benchmarks.serving.schedules import SMALL_CACHE, draw_schedule, run_schedule, wrong_in

SCHEDULES = 10


@pytest.fixture(scope="module")
def small() -> Any:
    """k=64 with a cache so small that requests are preempted."""
    return make_engine({"k": 64}, **SMALL_CACHE)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_token_of_a_drawn_schedule_is_wrong(small: Any, seed: int) -> None:
    requests = run_schedule(small, draw_schedule(seed))
    assert not [each for request in requests for found in wrong_in(request, k=64) for each in found]


def test_requests_of_a_schedule_are_preempted(small: Any) -> None:
    assert any(request.preemptions for request in run_schedule(small, draw_schedule(0)))
