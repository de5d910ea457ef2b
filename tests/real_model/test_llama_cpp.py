"""The converted model against llama.cpp on the GGUF file: the same tokens, and after them the same likeliest one.

llama.cpp computes with the quantised weights and activations of 8 bits; it has to agree only where the likeliest token
leads by more than half a nat.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

RECORDED = json.loads(Path(__file__).with_name("llama_cpp.json").read_text())
MARGIN = 0.5


@pytest.mark.parametrize("kind", sorted({each["kind"] for each in RECORDED["texts"]}))
def test_texts_have_the_same_tokens(tokenizer: Any, kind: str) -> None:
    texts = [each for each in RECORDED["texts"] if each["kind"] == kind]
    assert [tokenizer.encode(each["text"]) for each in texts] == [each["ids"] for each in texts]


def test_tokens_become_the_same_text_again(tokenizer: Any) -> None:
    for each in RECORDED["texts"]:
        assert tokenizer.decode(each["ids"]) == each["text"]


def test_the_likeliest_next_token_is_the_same(
    model: Any, tokenizer: Any, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    different = []
    for each in RECORDED["prompts"]:
        ids = torch.tensor([tokenizer.encode(each["prompt"])])
        with torch.inference_mode():
            logits = model(ids, logits_to_keep=1).logits[0, -1]
        if (found := int(logits.argmax())) != each["best"][0]:
            different.append(each | {"found": found})
    near = [each for each in different if each["margin"] <= MARGIN]
    record_property("different within half a nat", json.dumps(near))
    with capsys.disabled():
        total = len(RECORDED["prompts"])
        print(f"\n{len(different)} of {total} next tokens differ from llama.cpp's, {len(near)} of them near ties")
    assert different == near
    assert sum(each["margin"] > MARGIN for each in RECORDED["prompts"]) >= 20
