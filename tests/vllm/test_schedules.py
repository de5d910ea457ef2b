"""Drawn schedules against a replay of each request by transformers, chunk by chunk as vLLM scheduled it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.serving.engines import totals
from tests.vllm.schedules import ENGINES, Variant, draw_schedule, run_schedule

SCHEDULES = 6


# test_speculation.py has the one that drafts
@pytest.fixture(scope="module", params=[name for name in ENGINES if name != "drafts"])
def small(request: pytest.FixtureRequest) -> tuple[Any, Variant]:
    """An engine with a cache so small that requests are preempted."""
    variant = ENGINES[request.param]
    return variant.make(), variant


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_token_of_a_drawn_schedule_is_wrong(small: tuple[Any, Variant], seed: int) -> None:
    engine, variant = small
    requests = run_schedule(engine, draw_schedule(seed))
    assert not [each for request in requests for found in variant.wrong_in(request) for each in found]


def test_a_token_that_is_not_the_likeliest_is_found(small: tuple[Any, Variant]) -> None:
    engine, variant = small
    request = run_schedule(engine, draw_schedule(0))[0]
    assert request.answer is not None
    *tokens, last = request.answer.tokens
    best = request.answer.best[-1]
    other = min(best, key=best.__getitem__)
    assert best[last] - best[other] > 0.1
    request.answer = replace(request.answer, tokens=[*tokens, other])
    ((found,), _) = variant.wrong_in(request)
    assert f"is {other}, not {last}" in found


def test_requests_of_a_schedule_are_preempted(small: tuple[Any, Variant]) -> None:
    engine, variant = small
    assert any(request.preemptions for request in run_schedule(engine, draw_schedule(0)))
    assert (totals(engine).short_tokens > 0) == ("dense_below" in variant.settings)


def test_requests_that_clients_give_up_leave_the_others_right(small: tuple[Any, Variant]) -> None:
    engine, variant = small
    answered, given_up = run_schedule(engine, draw_schedule(0), give_up=(1, 3)), {1, 3}
    assert {index for index, request in enumerate(answered) if request.answer is None} == given_up
    assert not [each for request in answered if request.answer for found in variant.wrong_in(request) for each in found]
    assert not engine.llm_engine.has_unfinished_requests()
