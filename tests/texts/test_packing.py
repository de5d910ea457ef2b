"""Windows of tokens: what a model would see, none lost, none read that is not needed, the same every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.texts import Conventions, PlainText, StoredText, collect_windows, held_out_places
from toptheta_npu.texts import sources as sources_module
from toptheta_npu.texts.sources import Piece

END = 0


class Letters:
    """One token per character, its code."""

    bos_token_id: int | None = None
    eos_token_id: int | None = END

    def __call__(self, text: str, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


LETTERS = Conventions.of(Letters())  # type: ignore[arg-type]


def windows_of(texts: list[str], length: int, most: int | None) -> list[list[int]]:
    found = collect_windows([StoredText(text, text) for text in texts], LETTERS, length, most)
    return [window.tolist() for window in found.tokens]


@given(
    texts=st.lists(st.text("abc", min_size=1, max_size=30), max_size=8),
    length=st.integers(2, 12),
    most=st.none() | st.integers(0, 12),
)
def test_windows_hold_every_token_once(texts: list[str], length: int, most: int | None) -> None:
    found = collect_windows([StoredText(text, text) for text in texts], LETTERS, length, most)
    whole = sum(len(text) + 1 for text in texts)
    assert len(found.tokens) == (whole // length if most is None else min(most, whole // length))
    have = Counter(token for window in found.tokens for token in window.tolist())
    assert have <= Counter(ord(letter) for text in texts for letter in f"{text}\0")
    if most is None or len(found.tokens) < most:
        assert found.rest == whole - len(found.tokens) * length


def test_windows_are_dealt_from_all_sources_and_ends_are_joined() -> None:
    dealt = windows_of(["aaaaaa", "bbbbbbbbb", "c"], 3, 9)
    letters = ["".join(chr(token or ord(".")) for token in window) for window in dealt]
    assert letters == ["aaa", "bbb", "aaa", "bbb", "c..", "bbb"]


def test_all_windows_come_one_source_after_the_other() -> None:
    letters = ["".join(map(chr, window)) for window in windows_of(["aaaaaa", "bbbbbb"], 3, None)]
    assert letters == ["aaa", "aaa", "bbb", "bbb"]


class Counted(PlainText):
    """Says how many of its pieces were read."""

    read = 0

    def pieces(self) -> Iterator[Piece]:
        for piece in super().pieces():
            self.read += 1
            yield piece


def test_no_more_is_read_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "PIECE", 50)
    (tmp_path / "a.txt").write_text("ab " * 10_000)
    sources = [Counted(tmp_path / "a.txt", name) for name in "xyz"]
    found = collect_windows(sources, LETTERS, 100, 2)
    assert [source.read for source in sources] == [3, 3, 0]
    assert found.sources == sources[:2]


def test_sequences_begin_as_the_tokenizer_begins_a_text() -> None:
    tokenizer = load_tiny_llama()[1]
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    bos, eos = tokenizer.convert_tokens_to_ids(["<s>", "</s>"])
    without = Conventions.of(tokenizer)
    assert (without.first, without.separator) == (None, eos)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    conventions = Conventions.of(tokenizer)
    assert (conventions.first, conventions.separator) == (bos, eos)
    assert str(conventions) == "<s> in front of every window, </s> after every document"
    text = "import os\n" * 30
    found = collect_windows([StoredText("a", text), StoredText("b", "x = 1\n")], conventions, 16, None)
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert found.tokens[0].tolist() == [bos, *plain[:15]]
    assert found.tokens[1].tolist() == [bos, *plain[15:30]]


def test_a_tokenizer_without_ends_joins_the_documents() -> None:
    letters = Letters()
    letters.eos_token_id = None
    conventions = Conventions.of(letters)  # type: ignore[arg-type]
    found = collect_windows([StoredText("a", "ab"), StoredText("b", "cd")], conventions, 4, None)
    assert found.tokens[0].tolist() == [ord(letter) for letter in "abcd"]


@given(count=st.integers(1, 16), spare=st.integers(1, 400))
def test_held_out_windows_are_different_and_spread(count: int, spare: int) -> None:
    places = held_out_places(count + spare, count)
    assert len(set(places)) == count
    assert all(0 <= place < count + spare for place in places)
