"""Speculative decoding; the last of the engines in this process, since vLLM starts none after it drafted by n-grams."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.serving.engines import (
    K,
    answers,
    generated,
    make_engine,
    prompts,
    totals,
    wrong_tokens,
)
from tests.vllm.schedules import ENGINES, draw_schedule, run_schedule
from toptheta_npu.assets import TINY_LLAMA

DRAFT_MODEL = {"method": "draft_model", "model": str(TINY_LLAMA), "num_speculative_tokens": 3}


def test_a_model_drafts_densely_and_its_drafts_follow_the_thresholds() -> None:
    """It drafts with the dense model, so that some drafts are rejected."""
    drafting = make_engine({"k": K}, speculative_config=DRAFT_MODEL)
    asked = prompts(300, 150, 600, seed=12)
    for ids, answer in zip(asked, answers(drafting, asked), strict=True):
        assert not wrong_tokens(answer, generated(ids, len(answer.tokens), k=K))
    found = totals(drafting)
    assert found.thresholded_tokens == found.draft_tokens > 0
    assert found.decode_tokens < 4 * 3 * 32  # steps of the drafting model do not count


@pytest.fixture(scope="module")
def drafting() -> Any:
    return ENGINES["drafts"].make()


def test_drafts_give_the_tokens_that_come_without_them(drafting: Any) -> None:
    asked = prompts(300, 150, 600, seed=12)
    for ids, answer in zip(asked, answers(drafting, asked), strict=True):
        assert not wrong_tokens(answer, generated(ids, len(answer.tokens), k=K))


@pytest.mark.parametrize("seed", range(6))
def test_no_token_of_a_drawn_schedule_is_wrong(drafting: Any, seed: int) -> None:
    """Others have other numbers of drafts in the same step, or none, or a chunk of a prompt."""
    requests = run_schedule(drafting, draw_schedule(seed))
    assert not [each for request in requests for found in ENGINES["drafts"].wrong_in(request) for each in found]


def test_all_drafts_follow_the_thresholds_and_are_counted(drafting: Any) -> None:
    before = totals(drafting)
    answers(drafting, prompts(300, seed=13))
    added = totals(drafting) - before
    assert added.thresholded_tokens == added.draft_tokens > 0
