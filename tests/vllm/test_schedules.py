"""Drawn schedules against a replay of each request by transformers, chunk by chunk as vLLM scheduled it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.serving.engines import make_engine, totals
from benchmarks.serving.schedules import ENGINES, SMALL_CACHE, draw_schedule, run_schedule, wrong_in

SCHEDULES = 6


@pytest.fixture(scope="module", params=list(ENGINES))
def small(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    """An engine with a cache so small that requests are preempted, and its settings."""
    settings = ENGINES[request.param]
    return make_engine(settings, **SMALL_CACHE), settings


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_token_of_a_drawn_schedule_is_wrong(small: tuple[Any, dict[str, Any]], seed: int) -> None:
    engine, settings = small
    requests = run_schedule(engine, draw_schedule(seed))
    assert not [each for request in requests for found in wrong_in(request, **settings) for each in found]


def test_requests_of_a_schedule_are_preempted(small: tuple[Any, dict[str, Any]]) -> None:
    engine, settings = small
    assert any(request.preemptions for request in run_schedule(engine, draw_schedule(0)))
    assert (totals(engine).short_tokens > 0) == ("dense_below" in settings)
