"""Tokens of GGUF files that stand for themselves in a text, and those at which an answer ends, as in llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GenerationConfig

gguf = pytest.importorskip("gguf")

from tests.models.tiny_gguf import Vocabulary, byte_level, new_gguf, sentencepiece  # noqa: E402
from toptheta_npu.models import convert_gguf  # noqa: E402

CONTROL, USER_DEFINED, NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, gguf.TokenType.NORMAL
DEEPSEEK = (
    "<\uff5cbegin▁of▁sentence\uff5c>",
    "<\uff5cend▁of▁sentence\uff5c>",
    "<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>",
)
BLANKS = ("  ", "   ", "\n\n  ", "<think> ")


def add_token_axis(kind: str, texts: Sequence[str], types: Sequence[int] | int) -> Vocabulary:
    """A vocabulary with more tokens of some types at its end."""
    all_types = [types] * len(texts) if isinstance(types, int) else types
    base = byte_level(kind, texts) if kind != "llama" else sentencepiece()
    tokens = base.tokens if kind != "llama" else [*base.tokens, *texts]
    return replace(base, tokens=tokens, types=dict(zip(texts, all_types, strict=True)))


def ends_of(folder: Path, vocabulary: Vocabulary, **options: Any) -> list[int]:
    convert_gguf(new_gguf(folder, vocabulary, **options), folder / "out")
    found = GenerationConfig.from_pretrained(folder / "out").eos_token_id
    return found if isinstance(found, list) else [found]


def converted(folder: Path, vocabulary: Vocabulary) -> Any:
    convert_gguf(new_gguf(folder, vocabulary), folder / "out")
    return AutoTokenizer.from_pretrained(folder / "out")


@pytest.mark.parametrize(
    ("text", "kind"),
    [("<|eot_id|>", CONTROL), ("<|end|>", NORMAL), ("<end_of_turn>", USER_DEFINED), (DEEPSEEK[1], CONTROL)],
)
def test_an_answer_ends_at_each_token_that_ends_a_turn(tmp_path: Path, text: str, kind: int) -> None:
    vocabulary = add_token_axis("llama-bpe", [text], kind)
    # the file names <|im_end|> alone, and <|endoftext|> is there too
    assert ends_of(tmp_path, vocabulary) == [2, 0, vocabulary.id(text)]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer.encode(f"a{text}"), skip_special_tokens=True) == "a"


def test_ends_that_the_file_names_count_whatever_their_texts(tmp_path: Path) -> None:
    names = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")
    texts = [f"<{name}>" for name in names]
    vocabulary = add_token_axis("llama-bpe", texts, CONTROL)
    ids = [vocabulary.id(text) for text in texts]
    named = {f"tokenizer.ggml.{name}_token_id": token for name, token in zip(names, ids, strict=True)}
    assert ends_of(tmp_path, vocabulary, settings=named) == [2, *ids, 0]


@pytest.mark.parametrize("kind", ["smollm", "llama-bpe", "gpt-2", "llama"])
def test_user_defined_tokens_with_blanks_stay_whole(tmp_path: Path, kind: str) -> None:
    vocabulary = add_token_axis(kind, BLANKS, USER_DEFINED)
    tokenizer = converted(tmp_path, vocabulary)
    for text in BLANKS:
        assert tokenizer.encode(text, add_special_tokens=False) == [vocabulary.id(text)]
        assert tokenizer.decode([vocabulary.id("a"), vocabulary.id(text)], skip_special_tokens=True) == f"a{text}"


# transformers shows the blanks of SentencePiece's control tokens too
@pytest.mark.parametrize(("kind", "blank"), [("llama-bpe", "▁"), ("llama", " ")])
def test_control_tokens_of_other_alphabets_keep_their_ids(tmp_path: Path, kind: str, blank: str) -> None:
    vocabulary = add_token_axis(kind, DEEPSEEK, CONTROL)
    begin, end, user, assistant = map(vocabulary.id, DEEPSEEK)
    vocabulary = replace(vocabulary, ids={"bos": begin, "eos": end, "unk": 0, "pad": end})
    tokenizer = converted(tmp_path, vocabulary)
    assert len(tokenizer) == len(vocabulary.tokens)
    text = "<\uff5cUser\uff5c><\uff5cAssistant\uff5c><\uff5cend▁of▁sentence\uff5c>"
    assert tokenizer.encode(text) == [begin, user, assistant, end]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (begin, end, end)
    assert tokenizer.decode([user, vocabulary.id("a"), end], skip_special_tokens=True) == "a"
    assert tokenizer.decode([user, end]) == "<\uff5cUser\uff5c><\uff5cend▁of▁sentence\uff5c>".replace("▁", blank)
    assert end in GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id


def test_tokens_without_a_text_do_not_hide_each_other(tmp_path: Path) -> None:
    vocabulary = byte_level("llama-bpe", ["", "", "<|eot_id|>"])
    tokenizer = converted(tmp_path, vocabulary)
    assert len(tokenizer) == len(vocabulary.tokens)
    assert tokenizer.encode("a<|eot_id|>") == [1, vocabulary.id("a"), vocabulary.id("<|eot_id|>")]
