"""Shapes: parsing, defaults, and every wrong use with the argument it names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toptheta_npu import TopThetaValueError
from toptheta_npu.timing.shapes import (
    CPU_SHAPES,
    EXAMPLE,
    SHAPES,
    Shape,
    check_for_device,
    parse_shape,
)


def test_example_parses() -> None:
    assert parse_shape(EXAMPLE) == Shape(1, 32, 8, 8192, 512, 128, "bfloat16", 128)


def test_defaults_of_a_text() -> None:
    assert parse_shape("heads=8, n=1000") == Shape(1, 8, 8, 1000, 62)
    assert parse_shape("heads=8,n=5").k == 1
    assert parse_shape("heads=8,n=5").query_tokens == 1


def test_text_gives_the_shape_back() -> None:
    for shape in (*SHAPES, *CPU_SHAPES, replace(SHAPES[0], cache="int8", query_tokens=16)):
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


def test_bytes() -> None:
    shape = Shape(2, 32, 8, 1000, 10, dtype="bfloat16", block_size=128)
    assert shape.key_bytes == 2 * 8 * 1000 * 128 * 2
    assert (shape.blocks, shape.layer_bytes) == (8, 2 * 2 * 8 * 1024 * 128 * 2)
    assert (shape.int8_layer_bytes, replace(shape, cache="int8").int8_layer_bytes) == (0, 2 * 2 * 8 * 1024 * 128)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heads=32/8", "--shape: expected a value for n, got 'heads=32/8'"),
        ("heads=32/8,n=8,depth=3", "--shape: expected name=value with batch, heads, n, k"),
        ("heads=32/8,n=8,n=9", "--shape: expected n once, got '8' and '9'"),
        ("heads=32/8,n=many", "n in --shape: expected a whole number, got 'many'"),
        ("heads=32/x,n=8", "heads in --shape: expected a whole number, got 'x'"),
        ("heads=32/8,n=2048,k=4096", "k in --shape: expected at most n = 2048, got 4096"),
        ("heads=32/8,n=8,k=0", "k in --shape: expected a number from 1 to 2147483647, got 0"),
        ("heads=30/8,n=8", "heads in --shape: expected query heads that are a multiple of the KV heads, got 30/8"),
        ("heads=8,n=8,dtype=int8", "dtype in --shape: expected one of float16, bfloat16, float32, got 'int8'"),
        ("heads=8,n=8,cache=int4", "cache in --shape: expected int8, or nothing for a cache of dtype, got 'int4'"),
        ("heads=8,n=64,query_tokens=17", "query_tokens in --shape: expected a number from 1 to 16, got 17"),
        ("heads=8,n=3,query_tokens=4", "query_tokens in --shape: expected at most n = 3, since their keys"),
        ("heads=8,n=8,head_dim=1024", "head_dim in --shape: expected 16 to 512, got 1024"),
        ("heads=8,n=8,block_size=-1", "block_size in --shape: expected 0"),
        ("heads=8,n=99999999999", "n in --shape: expected a number from 1 to 2147483647, got 99999999999"),
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
