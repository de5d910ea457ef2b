"""Damaged GGUF files are refused by what is wrong with them, before anything is allocated for it."""

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
UINT8, UINT32, TEXT, ARRAY = 0, 4, 8, 9
HUGE = 1 << 32
MEMORY = 1 << 25


def text(content: str | bytes) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(data)) + data


def setting(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str | bytes, shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def array(kind: int, length: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + content


def write(folder: Path, settings: list[bytes], tensors: list[bytes], counts: tuple[int, int] | None = None) -> Path:
    """Write a file by hand: its settings and tensors, and 128 bytes of weights after them."""
    file = folder / "model.gguf"
    numbers = counts or (len(tensors), len(settings))
    header = b"GGUF" + struct.pack("<IQQ", 3, *numbers) + b"".join([*settings, *tensors])
    file.write_bytes(header + bytes(-len(header) % 32) + bytes(128))
    return file


def peak(file: Path, error: type[Exception], message: str) -> int:
    """How many bytes were allocated at once until the error came."""
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message):
            convert_gguf(file, file.parent / "out")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("settings", "tensors", "reason"),
    [
        ([setting("a.text", TEXT, text(b"\xff"))], [], "a.text is not UTF-8"),
        ([setting(b"\xff", UINT8, b"1")], [], "the name of a setting is not UTF-8"),
        ([], [tensor(b"\xff")], "the name of a tensor is not UTF-8"),
        ([setting("a.text", TEXT, struct.pack("<Q", 1 << 63))], [], "a.text would take 9223372036854775808 bytes or "),
        ([setting("a.list", ARRAY, array(UINT32, HUGE))], [], "a.list would take 17179869184 bytes or more, and"),
        ([setting("a.list", ARRAY, array(TEXT, HUGE))], [], "a.list would take 34359738368 bytes or more, and"),
        ([setting("a.list", ARRAY, array(ARRAY, 1, array(UINT8, 1)))], [], "a.list is of the unknown type 9"),
        ([setting("a.value", 77, b"")], [], "a.value is of the unknown type 77"),
        ([setting("a.value", UINT8, b"1")] * 2, [], "a.value is there twice"),
        ([], [tensor("a.weight")] * 2, "a.weight is there twice"),
        ([], [tensor("a.weight", (1,) * 5)], "a.weight has 5 dimensions"),
        ([], [tensor("a.weight", ())], "a.weight has 0 dimensions"),
        ([], [tensor("a.weight", (0, 8))], r"a.weight of shape \[8, 0\] at 0 is no tensor of F32"),
        ([], [tensor("a.weight", (33,), kind=8)], r"a.weight of shape \[33\] at 0 is no tensor of Q8_0"),
        ([], [tensor("a.weight", offset=5)], r"a.weight of shape \[32\] at 5 is no tensor of F32"),
        ([], [tensor("a.weight", (1 << 40,))], r"the weights of a.weight end at byte \d{13}, and the file at 192"),
        ([], [tensor("a.weight"), tensor("b.weight")], "the weights of a.weight and b.weight overlap"),
        ([setting("general.alignment", UINT32, struct.pack("<I", 0))], [], "general.alignment is 0, and not a power o"),
        ([setting("general.alignment", TEXT, text("32"))], [], "general.alignment is 32, and not a power of two"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_named_before_memory_is_taken(
    tmp_path: Path, settings: list[bytes], tensors: list[bytes], reason: str
) -> None:
    message = rf"expected a whole GGUF file, got .* ends early or is damaged \({reason}.*\); download it again"
    assert peak(write(tmp_path, settings, tensors), TopThetaValueError, message) < MEMORY
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("counts", [(HUGE, 0), (0, HUGE), (1 << 63, 1 << 63)])
def test_more_settings_and_tensors_than_fit_are_refused(tmp_path: Path, counts: tuple[int, int]) -> None:
    message = f"{counts[1]} settings and {counts[0]} tensors would take"
    assert peak(write(tmp_path, [], [], counts), TopThetaValueError, message) < MEMORY


def test_more_layers_than_the_file_has_tensors_take_no_memory(tmp_path: Path) -> None:
    layers = 1 << 20
    file = new_gguf(tmp_path, settings={"llama.block_count": layers})
    message = f"got {9 * (layers - 2)} of {9 * layers + 2} missing, such as blk.2.attn_q.weight"
    assert peak(file, TopThetaValueError, message) < MEMORY


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (4, struct.pack(">I", 3), "a little-endian GGUF file, got a big-endian one; use the model's own checkpoint"),
        (4, struct.pack("<I", 1), "of version 2 or 3, got version 1; use the model's own checkpoint"),
    ],
)
def test_other_forms_of_the_file_are_refused(tmp_path: Path, at: int, content: bytes, message: str) -> None:
    file = write(tmp_path, [], [])
    data = file.read_bytes()
    file.write_bytes(data[:at] + content + data[at + len(content) :])
    with pytest.raises(TopThetaNotImplementedError, match=message):
        convert_gguf(file, tmp_path / "out")


def test_types_of_weights_that_gguf_does_not_know_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, [], [tensor("a.weight", kind=999)])
    with pytest.raises(TopThetaNotImplementedError, match=r"got type 999 of a.weight; pip install -U gguf"):
        convert_gguf(file, tmp_path / "out")


def test_a_part_of_a_split_model_is_called_so(tmp_path: Path) -> None:
    # all that llama-gguf-split writes into every part but the first
    settings = [setting(f"split.{name}", 2, struct.pack("<H", value)) for name, value in (("no", 1), ("count", 3))]
    with pytest.raises(TopThetaValueError, match="a whole model, got part 2 of 3; join its parts: llama-gguf-split"):
        convert_gguf(write(tmp_path, settings, [tensor("blk.7.attn_q.weight")]), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("llama.attention.head_count", 0, "a whole number from 1 to 2147483647"),
        ("llama.attention.head_count_kv", 0, "a whole number from 1 to 2147483647"),
        ("llama.block_count", 2.0, "a whole number from 1 to 2147483647"),
        ("llama.block_count", "2", "a whole number from 1 to 2147483647"),
        ("llama.block_count", 1 << 31, "a whole number from 1 to 2147483647"),
        ("llama.context_length", True, "a whole number from 1 to 2147483647"),
        ("llama.vocab_size", 0.5, "a whole number from 1 to 2147483647"),
        ("llama.rope.dimension_count", "16", "a whole number from 1 to 2147483647"),
        ("llama.rope.freq_base", float("nan"), "a finite number above 0"),
        ("llama.rope.freq_base", float("inf"), "a finite number above 0"),
        ("llama.rope.freq_base", "1e4", "a finite number above 0"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "a finite number above 0"),
        ("llama.attention.layer_norm_rms_epsilon", float("inf"), "a finite number above 0"),
        ("llama.attention.layer_norm_rms_epsilon", -1e-5, "a finite number above 0"),
        ("general.name", 7, "a text"),
        ("tokenizer.ggml.add_bos_token", 1, "true or false"),
        ("tokenizer.ggml.eot_token_id", 100_000, rf"one of the {len(VOCABULARY.tokens)} tokens"),
        ("tokenizer.ggml.eot_token_id", "2", rf"one of the {len(VOCABULARY.tokens)} tokens"),
        ("tokenizer.ggml.add_space_prefix", "yes", "true or false"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(tmp_path: Path, name: str, value: Any, expected: str) -> None:
    file = new_gguf(tmp_path, settings={name: value})
    with pytest.raises(TopThetaValueError, match=rf"expected {expected} as {name}, got .*; download it again"):
        convert_gguf(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"llama.attention.head_count_kv": 3}, "heads in groups of one size, got 4 heads on 3 KV heads"),
        (
            {"llama.attention.head_count": 128, "llama.attention.head_count_kv": 2},
            "that 128 heads share, got one of 64",
        ),
        ({"llama.vocab_size": 100}, f"a vocabulary of at most 100 tokens, got {len(VOCABULARY.tokens)}"),
        ({"llama.vocab_size": 1 << 30}, "token_embd.weight of 1073741824 x 64, as its settings say, got"),
        ({"llama.feed_forward_length": 1 << 30}, "blk.0.ffn_gate.weight of 1073741824 x 64, as its settings say, got"),
        ({"split.count": 1.5}, "a whole model, got part 1 of 1.5"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert peak(new_gguf(tmp_path, settings=settings), TopThetaValueError, message) < MEMORY


LLAMA = sentencepiece()


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (byte_level(more=["!"]), r"of different tokens, got '!' as token 3 and as token \d+; download"),
        (replace(VOCABULARY, ids={"bos": 1, "eos": 5000}), "one of the 265 tokens as tokenizer.ggml.eos_token_id, got"),
        (replace(VOCABULARY, merges=["h e", "he"]), "pairs of tokens, .* as tokenizer.ggml.merges, got 'he'"),
        (replace(VOCABULARY, merges=["x y"]), "pairs of tokens, .* as tokenizer.ggml.merges, got 'x y'"),
        (replace(VOCABULARY, types={"a": 9}), "token types from 0 to 6, got 9"),
        (replace(LLAMA, scores=[0.0]), "a number for each token as tokenizer.ggml.scores, got 1 for 267 tokens"),
        (replace(LLAMA, scores=[float("nan")] * 267), "a number for each token as tokenizer.ggml.scores, got .*nan"),
        (replace(LLAMA, scores=["1"] * 267), "a number for each token as tokenizer.ggml.scores, got .*'1'"),
        (replace(LLAMA, ids={"bos": 300}), "one of the 267 tokens as tokenizer.ggml.bos_token_id, got 300"),
    ],
)
def test_damaged_vocabularies_are_refused(tmp_path: Path, vocabulary: Any, message: str) -> None:
    with pytest.raises(TopThetaValueError, match=message):
        convert_gguf(new_gguf(tmp_path, vocabulary), tmp_path / "out")


def test_a_token_to_add_that_the_file_does_not_name_is_refused(tmp_path: Path) -> None:
    file = new_gguf(tmp_path, replace(VOCABULARY, ids={"eos": 2}), settings={"tokenizer.ggml.add_bos_token": True})
    with pytest.raises(TopThetaValueError, match=r"to add to every text as tokenizer.ggml.bos_token_id, got none"):
        convert_gguf(file, tmp_path / "out")


def test_bytes_changed_at_random_are_refused_or_do_no_harm(tmp_path: Path) -> None:
    file = new_gguf(tmp_path)
    content = file.read_bytes()
    header = content.index(b"blk.0.attn_norm.weight")
    drawn = random.Random(0)
    refused = 0
    for number in range(40):
        changed = bytearray(content)
        for _ in range(drawn.choice([1, 1, 8])):
            changed[drawn.randrange(header)] = drawn.choice([0, 1, 127, 255, drawn.randrange(256)])
        file.write_bytes(changed)
        try:
            convert_gguf(file, tmp_path / f"out{number}")
        except TopThetaArgumentError:
            refused += 1
    assert refused > 10
