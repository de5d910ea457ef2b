"""Shapes: parsing, configs, defaults, and every wrong use with the argument it names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from toptheta_npu import TopThetaValueError
from toptheta_npu.timing.shapes import (
    CPU_SHAPES,
    EXAMPLE,
    SHAPES,
    SWEEPS,
    Shape,
    check_for_device,
    parse_shape,
    shape_from_config,
)


def test_example_parses() -> None:
    assert parse_shape(EXAMPLE) == Shape(1, 32, 8, 8192, 512, 128, "bfloat16", 128)


def test_defaults_of_a_text() -> None:
    assert parse_shape("heads=8, n=1000") == Shape(1, 8, 8, 1000, 62)
    assert parse_shape("heads=8,n=5").k == 1
    assert parse_shape("heads=8,n=5").query_tokens == 1


@pytest.mark.parametrize("shape", [
    *SHAPES, *CPU_SHAPES, replace(SHAPES[0], cache="int8"), replace(SHAPES[0], cache="int8", query_tokens=16),
], ids=str)  # fmt: skip
def test_text_gives_the_shape_back(shape: Shape) -> None:
    assert parse_shape(str(shape)) == shape


def test_one_token_is_not_named() -> None:
    assert "query_tokens" not in str(parse_shape("heads=8,n=64,query_tokens=1"))
    assert str(parse_shape("heads=8,n=64,query_tokens=4")).endswith(",query_tokens=4")


def test_table_covers_what_is_compared() -> None:
    assert Shape(1, 48, 48, 2048, 128) in SHAPES
    for heads in (32, 64):
        grouped = [shape for shape in SHAPES if (shape.num_heads, shape.num_key_value_heads) == (heads, 8)]
        assert {shape.n for shape in grouped if shape.k * 16 == shape.n} >= {2048, 8192, 32768, 131072}
    assert Shape(1, 32, 8, 131072, 512) in SHAPES
    assert {shape.batch for shape in SHAPES} == {1, 4, 16, 64}
    assert {shape.dtype for shape in SHAPES} == {"float16", "bfloat16"}
    assert {shape.block_size for shape in SHAPES} == {0, 128}
    assert len(set(SHAPES)) == len(SHAPES)
    for shape in SHAPES:
        check_for_device(shape, "npu")


@pytest.mark.parametrize(("name", "device"), [(name, device) for name in SWEEPS for device in ("cpu", "npu")])
def test_sweep_changes_one_thing(name: str, device: str) -> None:
    groups: dict[Shape, list[Shape]] = {}
    for shape in SWEEPS[name](device):
        same = replace(shape, k=1, n=1) if name == "lengths" else replace(shape, k=1)
        groups.setdefault(same, []).append(shape)
    for shapes in groups.values():
        assert len(shapes) >= 5
        assert len({shape.k / shape.n for shape in shapes}) == (1 if name == "lengths" else len(shapes))
        assert len({shape.n for shape in shapes}) == (len(shapes) if name == "lengths" else 1)


def test_densities_of_a_cpu_end_at_half() -> None:
    shapes = SWEEPS["densities"]("cpu")
    for heads, n in (("48/48", 2048), ("32/8", 8192)):
        for dtype in ("float32", "bfloat16"):
            kept = [shape.k for shape in shapes if (shape.heads, shape.n, shape.dtype) == (heads, n, dtype)]
            assert (kept[0], kept[-1]) == (32, n // 2)


def test_bytes() -> None:
    shape = Shape(2, 32, 8, 1000, 10, dtype="bfloat16", block_size=128)
    assert shape.key_bytes == 2 * 8 * 1000 * 128 * 2
    assert (shape.blocks, shape.layer_bytes) == (8, 2 * 2 * 8 * 1024 * 128 * 2)
    assert (shape.int8_layer_bytes, replace(shape, cache="int8").int8_layer_bytes) == (0, 2 * 2 * 8 * 1024 * 128)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heads=32/8", "--shape: expected a value for n, got 'heads=32/8'"),
        ("n=8", "--shape: expected a value for heads"),
        ("heads=32/8,n=8,depth=3", "--shape: expected name=value with batch, heads, n, k"),
        ("heads=32/8,n", "--shape: expected name=value"),
        ("heads=32/8,n=8,n=9", "--shape: expected n once, got '8' and '9'"),
        ("heads=32/8,n=many", "n in --shape: expected a whole number, got 'many'"),
        ("heads=32/x,n=8", "heads in --shape: expected a whole number, got 'x'"),
        ("heads=32/8,n=2048,k=4096", "k in --shape: expected at most n = 2048, got 4096"),
        ("heads=32/8,n=8,k=0", "k in --shape: expected a number from 1 to 2147483647, got 0"),
        ("heads=30/8,n=8", "heads in --shape: expected query heads that are a multiple of the KV heads, got 30/8"),
        ("heads=8/0,n=8", "heads in --shape: expected a number from 1 to 2147483647, got 0"),
        ("heads=8,n=8,batch=-1", "batch in --shape: expected a number from 1 to 2147483647, got -1"),
        ("heads=8,n=8,dtype=int8", "dtype in --shape: expected one of float16, bfloat16, float32, got 'int8'"),
        ("heads=8,n=8,cache=int4", "cache in --shape: expected int8, or nothing for a cache of dtype, got 'int4'"),
        ("heads=8,n=64,query_tokens=0", "query_tokens in --shape: expected a number from 1 to 16, got 0; split"),
        ("heads=8,n=64,query_tokens=17", "query_tokens in --shape: expected a number from 1 to 16, got 17"),
        ("heads=8,n=64,query_tokens=four", "query_tokens in --shape: expected a whole number, got 'four'"),
        ("heads=8,n=3,query_tokens=4", "query_tokens in --shape: expected at most n = 3, since their keys"),
        ("heads=8,n=8,head_dim=1024", "head_dim in --shape: expected 16 to 512, got 1024"),
        ("heads=8,n=8,block_size=-1", "block_size in --shape: expected 0"),
        ("heads=8,n=99999999999", "n in --shape: expected a number from 1 to 2147483647, got 99999999999"),
        (f"heads=8,n={'9' * 4000}", "n in --shape: expected a number from 1 to 2147483647, got a much larger one"),
        (f"heads=8,n={'9' * 5000}", "n in --shape: expected a whole number, got '999"),
        ("heads=8,n=nan", "n in --shape: expected a whole number, got 'nan'"),
    ],
)
def test_wrong_text(text: str, message: str) -> None:
    with pytest.raises(TopThetaValueError) as caught:
        parse_shape(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heads=8,n=64,dtype=float32", "dtype in {}: expected float16 or bfloat16 on an NPU"),
        ("heads=8,n=64,head_dim=40", "head_dim in {}: expected a multiple of 16 on an NPU"),
        ("heads=8,n=64,block_size=1024", "block_size in {}: expected 0 or a multiple of 16 up to 512"),
    ],
)
def test_what_the_kernel_does_not_take(text: str, message: str) -> None:
    shape = parse_shape(text)
    check_for_device(shape, "cpu")
    with pytest.raises(TopThetaValueError) as caught:
        check_for_device(shape, "npu")
    assert str(caught.value).startswith(message.format(shape))


def test_int8_caches_are_compared_on_a_cpu_and_an_npu() -> None:
    shape = replace(SHAPES[0], cache="int8")
    for device in ("cpu", "npu"):
        check_for_device(shape, device)
    with pytest.raises(TopThetaValueError, match=r"cache in .*: expected the cache of dtype on cuda, got int8"):
        check_for_device(shape, "cuda")
    with pytest.raises(TopThetaValueError, match=r"head_dim in .*: expected a multiple of 32 with int8"):
        check_for_device(replace(shape, head_dim=80), "npu")


LLAMA = {
    "model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, Shape(2, 32, 8, 2048, 128, 128, "bfloat16")),
        (
            {"model_type": "gemma3", "text_config": {"num_attention_heads": 8, "num_key_value_heads": 4,
                                                     "head_dim": 256, "dtype": "float32"}},
            Shape(2, 8, 4, 2048, 128, 256, "float32"),
        ),
        ({"model_type": "gpt2", "n_head": 12, "n_embd": 768}, Shape(2, 12, 12, 2048, 128, 64, "float16")),
    ],
)  # fmt: skip
def test_config(tmp_path: Path, config: dict[str, object], expected: Shape) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_from_config(tmp_path, 2048, batch=2) == expected
    assert shape_from_config(tmp_path / "config.json", 2048, 7, batch=2).k == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "--config: expected a config.json"),
        ("[]", "--config: expected a config.json"),
        ("{}", "--config: expected a config.json"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "--config: expected a config.json"),
        ('{"model_type": "mamba"}', "--config: expected num_attention_heads from 1, got None in"),
        ('{"model_type": "gpt2", "n_head": true}', "--config: expected"),
        ('{"model_type": "llama", "num_attention_heads": "32"}', "--config: expected"),
        ('{"model_type": "llama", "head_dim": 8}', "head_dim in .*: expected 16 to 512, got 8"),
        ('{"model_type": "llama", "dtype": "float64"}', "dtype in .*: expected one of float16, bfloat16, float32"),
    ],
    ids=lambda value: value[:40],
)
def test_wrong_config(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(TopThetaValueError, match=f"^{message}"):
        shape_from_config(tmp_path, 64)


def test_missing_config(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "config.json", "x" * 5000, "./none"):
        with pytest.raises(TopThetaValueError, match=r"^--config: expected a config\.json, a folder with one"):
            shape_from_config(source, 64)
