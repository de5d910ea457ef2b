"""A real model generates by thresholds: what is dense stays dense to the token, and what is sparse stays sense."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.real_model.chats import as_ids, long_question
from toptheta_npu.models import sparsify
from toptheta_npu.thresholds import ThresholdTable

PROMPT = 700
NEAR = 1e-3


@pytest.fixture(scope="module")
def thresholds(table: Path) -> ThresholdTable:
    return ThresholdTable.load(table)


@pytest.fixture(scope="module")
def prompt(tokenizer: Any, texts: dict[str, Path]) -> list[int]:
    """A question after a text; its rows are long enough to be sparse in every layer."""
    return as_ids(tokenizer, long_question(tokenizer, texts["evaluation"], PROMPT))


def generate(model: Any, ids: torch.Tensor, new_tokens: int = 24, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy tokens, and by how much each leads."""
    made = model.generate(
        ids, max_new_tokens=new_tokens, do_sample=False, output_logits=True, return_dict_in_generate=True, **options
    )
    best = torch.stack(made.logits, 1).log_softmax(-1).topk(2).values
    return made.sequences[:, ids.shape[1] :], best[..., 0] - best[..., 1]


def assert_same(found: torch.Tensor, expected: torch.Tensor, leads: torch.Tensor) -> None:
    """Tokens are equal as far as no two of them were near a tie."""
    different = (found != expected).nonzero().flatten().tolist()
    if different:
        assert leads[different[0]] < NEAR, f"token {different[0]}"
        assert different[0] > 0


def test_thresholds_of_minus_infinity_change_no_token(
    model: Any, thresholds: ThresholdTable, prompt: list[int]
) -> None:
    everything = dataclasses.replace(
        thresholds,
        theta=torch.full_like(thresholds.theta, -torch.inf),
        layer_k=[0] * 30,
    )
    ids = torch.tensor([prompt])
    dense, leads = generate(model, ids)
    with sparsify(model, everything, k=64, statistics=True) as run:
        found, _ = generate(model, ids)
    assert_same(found[0], dense[0], leads[0])
    last = run.statistics()[-1]
    assert bool((last.kept[last.decode] == last.keys[last.decode][:, None]).all())


@pytest.mark.parametrize("k", [64, 128])
def test_a_sparse_answer_after_a_long_text_is_that_of_the_dense_model(
    model: Any, thresholds: ThresholdTable, tokenizer: Any, prompt: list[int], k: int
) -> None:
    ids = torch.tensor([prompt])
    dense, _ = generate(model, ids)
    with sparsify(model, thresholds, k=k, statistics=True) as run:
        found, _ = generate(model, ids)
    answers = [tokenizer.decode(tokens[0], skip_special_tokens=True) for tokens in (dense, found)]
    assert all("capital of France is Paris" in answer for answer in answers), answers
    for layer in run.statistics()[2:]:
        rows = layer.decode
        assert int(rows.sum()) >= 6  # the answer, without its first token
        assert float(layer.kept[rows].float().mean()) < 0.4 * float(layer.keys[rows].float().mean())
    kept = torch.cat([layer.kept[layer.decode].flatten() for layer in run.statistics()[2:]]).float().mean()
    assert 0.5 < kept / k < 2


def test_the_chat_template_is_that_of_the_model(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == expected
    ids = as_ids(tokenizer, chat)
    assert ids[0] == tokenizer.bos_token_id == 1
    assert ids.count(1) == 3
    assert ids.count(tokenizer.eos_token_id) == 2
    assert tokenizer.decode(ids) == expected


def test_a_padded_batch_gives_each_sequence_its_own_answer(
    model: Any, thresholds: ThresholdTable, tokenizer: Any, prompt: list[int], texts: dict[str, Path]
) -> None:
    other = as_ids(tokenizer, long_question(tokenizer, texts["calibration"], PROMPT // 2))
    width = max(len(prompt), len(other))
    assert len(other) < width - 100
    rows = [[tokenizer.pad_token_id] * (width - len(ids)) + ids for ids in (prompt, other)]
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in (prompt, other)])
    with sparsify(model, thresholds, k=64):
        together, _ = generate(model, torch.tensor(rows), attention_mask=mask)
        for row, ids in zip(together, (prompt, other), strict=True):
            alone, leads = generate(model, torch.tensor([ids]))
            assert_same(row[: alone.shape[1]], alone[0], leads[0])
