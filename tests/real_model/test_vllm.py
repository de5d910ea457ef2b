"""The plug-in in vLLM on a real model, by the thresholds that the other tests have made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.serving.engines import Answer, answers, generated_by, make_engine, totals, wrong_tokens
from tests.real_model.chats import as_ids, long_question
from tests.real_model.places import FOLDER, TABLE
from toptheta_npu.thresholds import ThresholdTable

NEW_TOKENS = 16
#: vLLM computes the prompt in another order than transformers does.
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def thresholds() -> ThresholdTable:
    if not TABLE.exists():
        raise pytest.UsageError(f"expected thresholds in {TABLE}, got none; see: make test-real")
    return ThresholdTable.load(TABLE)


@pytest.fixture(scope="module")
def asked(tokenizer: Any, texts: dict[str, Path]) -> list[list[int]]:
    """Prompts of several lengths."""
    return [as_ids(tokenizer, long_question(tokenizer, texts["evaluation"], tokens)) for tokens in (700, 150, 400)]


def engine(settings: dict[str, Any] | None = None) -> Any:
    return make_engine(settings, model=str(FOLDER))


@pytest.fixture(scope="module")
def stock(asked: list[list[int]]) -> list[Answer]:
    """What vLLM answers as it is."""
    return answers(engine(), asked, NEW_TOKENS)


def check(found: list[Answer], expected: list[Answer]) -> None:
    wrong = {
        index: errors
        for index, pair in enumerate(zip(found, expected, strict=True))
        if (errors := wrong_tokens(*pair, tolerance=TOLERANCE))
    }
    assert not wrong


def test_thresholds_of_minus_infinity_equal_vllm_as_it_is(
    stock: list[Answer], thresholds: ThresholdTable, asked: list[list[int]], tmp_path: Path
) -> None:
    dense = tmp_path / "dense.theta"
    dataclasses.replace(
        thresholds,
        theta=torch.full_like(thresholds.theta, -torch.inf),
        layer_k=[0] * 30,
    ).save(dense)
    made = engine({"table": str(dense), "k": 64})
    check(answers(made, asked, NEW_TOKENS), stock)
    counted = totals(made)
    assert counted.kept == counted.elements > 0


def test_thresholds_answer_as_sparsify_does_and_make_sense(
    thresholds: ThresholdTable, model: Any, tokenizer: Any, asked: list[list[int]]
) -> None:
    made = engine({"table": str(TABLE), "k": 64})
    found = answers(made, asked, NEW_TOKENS)
    counted = totals(made)
    assert 0.5 < counted.sparse_kept / counted.sparse_aims < 2
    assert counted.value_rows < 0.8 * counted.available_value_rows
    assert "Paris" in tokenizer.decode(found[0].tokens)
    check(found, [generated_by(model, thresholds, ids, NEW_TOKENS, k=64) for ids in asked])
