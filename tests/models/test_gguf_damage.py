"""Damaged GGUF files are refused, before anything is allocated for what they ask for."""

from __future__ import annotations

import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toptheta_npu.errors import TopThetaArgumentError, TopThetaNotImplementedError, TopThetaValueError

gguf = pytest.importorskip("gguf")

from tests.models.tiny_gguf import byte_level, new_gguf, sentencepiece  # noqa: E402
from toptheta_npu.models import convert_gguf  # noqa: E402

VOCABULARY = byte_level()
UINT32, TEXT, ARRAY = 4, 8, 9
HUGE = 1 << 32
MEMORY = 1 << 25


def text(content: str | bytes) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(data)) + data


def setting(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(shape: tuple[int, ...] = (32,), kind: int = 0) -> bytes:
    return text("a.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)


def write(folder: Path, setting: bytes = b"", tensor: bytes = b"", version: int = 3) -> Path:
    """Write a file by hand: a setting and a tensor, and 128 bytes of weights after them."""
    file = folder / "model.gguf"
    header = b"GGUF" + struct.pack("<IQQ", version, bool(tensor), bool(setting)) + setting + tensor
    file.write_bytes(header + bytes(-len(header) % 32) + bytes(128))
    return file


@pytest.mark.parametrize(
    "spoilt",
    [
        {"setting": setting("a.text", TEXT, text(b"\xff"))},
        {"setting": setting("a.text", TEXT, struct.pack("<Q", 1 << 63))},
        {"setting": setting("a.list", ARRAY, struct.pack("<IQ", UINT32, HUGE))},
        {"setting": setting("a.list", ARRAY, struct.pack("<IQ", TEXT, HUGE))},
        {"setting": setting("a.value", 77, b"")},
        {"setting": setting("general.alignment", UINT32, struct.pack("<I", 0))},
        {"tensor": tensor((1 << 40,))},
    ],
    ids=["no UTF-8", "long text", "long list", "many texts", "type", "alignment", "long tensor"],
)
def test_a_damaged_file_is_refused_before_memory_is_taken(tmp_path: Path, spoilt: dict[str, bytes]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TopThetaValueError, match=r"a whole GGUF file, got .* damaged .*; download it again"):
            convert_gguf(write(tmp_path, **spoilt), tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"version": 1}, "of version 2 or 3, got version 1; use the model's own checkpoint"),
        ({"tensor": tensor(kind=999)}, "got type 999 of a.weight; pip install -U gguf"),
    ],
)
def test_other_forms_of_the_file_are_refused(tmp_path: Path, spoilt: dict[str, Any], message: str) -> None:
    with pytest.raises(TopThetaNotImplementedError, match=message):
        convert_gguf(write(tmp_path, **spoilt), tmp_path / "out")


LLAMA = sentencepiece()


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (byte_level(more=["!"]), "of different tokens"),
        (replace(VOCABULARY, ids={"bos": 1, "eos": 5000}), "265 tokens as tokenizer.ggml.eos_token_id, got 5000"),
        (replace(LLAMA, scores=[0.0]), "a type and a score for each token, got others for 267 tokens"),
    ],
)
def test_damaged_vocabularies_are_refused(tmp_path: Path, vocabulary: Any, message: str) -> None:
    with pytest.raises(TopThetaValueError, match=message):
        convert_gguf(new_gguf(tmp_path, vocabulary), tmp_path / "out")


def test_a_token_to_add_that_the_file_does_not_name_is_refused(tmp_path: Path) -> None:
    file = new_gguf(tmp_path, replace(VOCABULARY, ids={"eos": 2}), settings={"tokenizer.ggml.add_bos_token": True})
    with pytest.raises(TopThetaValueError, match=r"to add to every text as tokenizer.ggml.bos_token_id, got none"):
        convert_gguf(file, tmp_path / "out")


def test_cut_and_changed_bytes_of_a_header_are_refused_or_do_no_harm(tmp_path: Path) -> None:
    file = new_gguf(tmp_path)
    content = file.read_bytes()
    header = content.index(b"blk.0.attn_norm.weight")
    drawn = random.Random(0)
    refused = 0
    for number in range(20):
        changed = bytearray(content)
        changed[drawn.randrange(24)] = drawn.choice([127, 255])
        file.write_bytes(changed if number % 2 else content[: drawn.randrange(header)])
        try:
            convert_gguf(file, tmp_path / f"out{number}")
        except TopThetaArgumentError:
            refused += 1
    assert refused > 10
