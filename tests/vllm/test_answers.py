"""vLLM by thresholds against vLLM as it is, and against `sparsify` and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.engines import (
    Answer,
    answers,
    dense_table,
    generated,
    make_engine,
    prompts,
    totals,
    wrong_tokens,
)


def check(ours: list[Answer], reference: list[Answer]) -> None:
    wrong = {
        index: found for index, pair in enumerate(zip(ours, reference, strict=True)) if (found := wrong_tokens(*pair))
    }
    assert not wrong


RAGGED = (700, 1, 33, 1400, 64, 128, 257, 2)


def test_thresholds_of_minus_infinity_equal_vllm_as_it_is(stock: Any, keeping_all: Any) -> None:
    asked = prompts(*RAGGED)
    check(answers(keeping_all, asked), answers(stock, asked))
    counted = totals(keeping_all)
    assert counted.kept == counted.elements > 0
    assert counted.value_rows == counted.available_value_rows


def test_thresholds_equal_sparsify_and_generate(sparse: Any) -> None:
    before = totals(sparse)
    asked = prompts(700, 1500, 300)
    check(answers(sparse, asked), [generated(ids, 32, k=64) for ids in asked])
    added = totals(sparse) - before
    assert added.decode_tokens == 3 * 31
    assert added.rows == 6 * added.decode_tokens
    assert added.prompt_tokens == 2500
    assert 0.05 < added.kept / added.elements < 0.5
    assert added.value_rows < 0.8 * added.available_value_rows
    assert 0.5 < added.sparse_kept / added.sparse_aims < 2


def test_tau_equals_sparsify_and_generate() -> None:
    engine = make_engine({"tau": 0.002}, max_num_batched_tokens=96)
    asked = prompts(*RAGGED, seed=20)
    check(answers(engine, asked), [generated(ids, 32, tau=0.002) for ids in asked])
    counted = totals(engine)
    assert 0.01 < counted.kept / counted.elements < 0.5
    assert counted.sparse_aims == 0


def test_a_batch_of_many_lengths_equals_its_sequences_alone(sparse: Any) -> None:
    asked = prompts(*RAGGED, seed=1)
    together = answers(sparse, asked)
    check(together, [answers(sparse, [ids])[0] for ids in asked])


def test_requests_that_come_while_others_decode_change_nothing(sparse: Any) -> None:
    asked = prompts(500, 900, 40, seed=2)
    alone = [answers(sparse, [ids])[0] for ids in asked]
    check(staggered(sparse, asked, gap=7), alone)


def staggered(engine: Any, asked: list[list[int]], gap: int) -> list[Answer]:
    """The answers where a new request comes every ``gap`` steps: prompts and decode steps are mixed."""
    from benchmarks.serving.engines import answer_of, greedy

    llm, outputs = engine.llm_engine, {}
    for index, ids in enumerate(asked):
        llm.add_request(str(index), {"prompt_token_ids": ids}, greedy(32))
        for _ in range(gap):
            outputs |= {output.request_id: output for output in llm.step() if output.finished}
    while llm.has_unfinished_requests():
        outputs |= {output.request_id: output for output in llm.step() if output.finished}
    return [answer_of(outputs[str(index)]) for index in range(len(asked))]


@pytest.fixture(scope="module")
def chunked_and_cached() -> Any:
    return make_engine({"k": 64}, enable_prefix_caching=True, max_num_batched_tokens=96, enable_chunked_prefill=True)


def test_prompts_in_chunks_beside_decode_steps_change_nothing(sparse: Any, chunked_and_cached: Any) -> None:
    asked = prompts(700, 320, 95, 96, 97, seed=3)
    check(answers(chunked_and_cached, asked), answers(sparse, asked))


def test_a_prefix_from_the_cache_changes_nothing(sparse: Any, chunked_and_cached: Any) -> None:
    first, other = prompts(800, 150, seed=4)
    asked = [first, first[:640] + other, first]
    expected = answers(sparse, asked)
    answers(chunked_and_cached, [first])
    before = totals(chunked_and_cached)
    check(answers(chunked_and_cached, asked), expected)
    assert (totals(chunked_and_cached) - before).prompt_tokens < 400  # the rest came from the cache


def test_short_rows_are_dense_whatever_they_decode_beside() -> None:
    """Alone, vLLM's own kernel runs them; beside a longer row, our operator does."""
    engine = make_engine({"k": 64, "dense_below": 400}, enable_prefix_caching=True)
    asked = prompts(700, 390, 300, seed=12)
    expected = [generated(ids, 32, k=64, dense_below=400) for ids in asked]
    check(answers(engine, asked), expected)
    assert totals(engine).short_tokens == 0
    check(answers(engine, asked[1:]), expected[1:])
    added = totals(engine)
    assert 0 < added.short_tokens < 2 * 31  # one of the two grows beyond 400
    check(answers(engine, asked), expected)  # the V sums of all pages are there


def test_prompts_by_thresholds_equal_those_of_sparsify() -> None:
    engine = make_engine({"k": 64, "prefill": "thresholded"})
    asked = prompts(700, 60, 900, seed=10)
    check(answers(engine, asked), [generated(ids, 32, k=64, prefill="thresholded") for ids in asked])
    assert totals(engine).thresholded_tokens == 1660


def test_means_of_pages_that_requests_share_equal_those_of_sparsify() -> None:
    engine = make_engine({"k": 64}, enable_prefix_caching=True, max_num_batched_tokens=96)
    asked = prompts(700, 1500, 300, seed=11)
    expected = [generated(ids, 32, k=64) for ids in asked]
    check(answers(engine, asked), expected)
    check(answers(engine, asked), expected)  # prompts from the cache


def test_thresholds_without_compensation_by_the_mean_equal_sparsify() -> None:
    engine = make_engine({"k": 64, "vmc": False})
    asked = prompts(700, 300)
    check(answers(engine, asked), [generated(ids, 32, k=64, vmc=False) for ids in asked])


def test_a_model_that_vllm_compiles_answers_as_sparsify() -> None:
    engine = make_engine({"k": 64}, enforce_eager=False)
    asked = prompts(700, 300, seed=15)
    check(answers(engine, asked), [generated(ids, 32, k=64) for ids in asked])
    assert totals(engine).decode_tokens > 0


def test_bfloat16_pages_are_read_as_they_lie(tmp_path: Path) -> None:
    asked = prompts(500, 70, seed=13)
    reference = answers(make_engine(dtype="bfloat16"), asked, 8)
    ours = answers(make_engine({"table": str(dense_table(tmp_path)), "k": 64}, dtype="bfloat16"), asked, 8)
    compared = 0
    for one, other in zip(ours, reference, strict=True):
        for index, token in enumerate(other.tokens):
            difference = abs(one.best[index].get(token, -9.0) - other.best[index][token])
            assert difference < 0.1, f"token {index} of {len(other.tokens)}"
            compared += index > 0  # the first one comes from the prompt
            if one.tokens[index] != token:
                break
    assert compared > 4
