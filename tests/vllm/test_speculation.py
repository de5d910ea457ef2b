"""Speculative decoding; the last of the engines in this process, since vLLM starts none after it drafted by n-grams."""

from __future__ import annotations

from typing import Any

from benchmarks.serving.engines import answers, make_engine, prompts, totals
from tests.vllm.test_answers import check


def test_drafts_are_verified_densely_and_counted(stock: Any) -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    engine = make_engine({"k": 64, "dense_below": 2048}, speculative_config=speculation)
    asked = prompts(300, 150, seed=12)
    check(answers(engine, asked), answers(stock, asked))  # all rows are dense, whatever drafts are accepted
    assert totals(engine).draft_tokens > 0
