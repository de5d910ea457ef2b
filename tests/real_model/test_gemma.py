"""Gemma 3 270M out of a GGUF file: the model that transformers' own loader makes of it, and one that tau suits."""

from __future__ import annotations

import pydoc_data.topics
import re
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.real_model.places import GEMMA
from toptheta_npu import sparsify

FILE = "gemma-3-270m-q4_k_m.gguf"


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(GEMMA / "gemma3").eval()


@pytest.fixture(scope="module")
def text() -> str:
    return "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))


def test_weights_and_settings_are_those_of_the_other_loader(model: Any) -> None:
    other = AutoModelForCausalLM.from_pretrained(GEMMA, gguf_file=FILE, dtype=torch.float32)
    expected = other.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in model.state_dict().items())
    given, wanted = model.config.to_dict(), other.config.to_dict()
    names = {name for name in given if given[name] != wanted.get(name)}
    assert names <= {"_name_or_path", "architectures", "dtype", "transformers_version", "unk_token_id"}


def test_tokens_are_those_of_the_other_tokenizer(text: str) -> None:
    """But for more than 31 blanks: llama.cpp takes the longest token there, transformers merges pairs."""
    ours, other = AutoTokenizer.from_pretrained(GEMMA / "gemma3"), AutoTokenizer.from_pretrained(GEMMA, gguf_file=FILE)
    more = " \n\n\ttwo  blanks\t日本語 🎉 12345 İß\r\n<start_of_turn>user\nhi<end_of_turn>" + " " * 31
    asked = re.sub(" {32,}", " ", text[:200_000]) + more
    assert ours.encode(asked) == other.encode(asked)


def test_a_text_costs_hardly_more_by_a_thousandth_of_the_attention(model: Any, text: str) -> None:
    ids = AutoTokenizer.from_pretrained(GEMMA / "gemma3")(text, return_tensors="pt").input_ids[:, :1024]
    with torch.no_grad():
        dense = model(ids, labels=ids).loss
        with sparsify(model, tau=0.001, prefill="thresholded", statistics="summary") as run:
            sparse = model(ids, labels=ids).loss
    full = [layer for layer in run.summaries() if layer.rows]
    assert len(full) == 3
    assert all(float(layer.kept.float().mean() / layer.keys) < 0.3 for layer in full)
    assert abs(float(sparse - dense)) < 0.01
