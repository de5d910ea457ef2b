"""Element-wise instructions of the host model against numpy: values, types, lanes, strides and the mask register."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulator.ascendc import Kernel, run_kernel

Array = npt.NDArray[Any]
KERNELS = Path(__file__).parent / "kernels"
COUNT = 200
SIZE = 1024


def run_rows(entry: str, rows: int, x: Array, y: Array, dtype: type[Any]) -> Array:
    z = np.zeros((rows, COUNT), dtype)
    run_kernel(
        Kernel(KERNELS / "api_elementwise.cpp", entry=entry), [("x", x, "in"), ("y", y, "in"), ("z", z, "out")]
    ).require_clean()
    return z


def numbers(dtype: type[Any], seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        x, y = rng.integers(info.min, info.max, (2, COUNT), endpoint=True)
        return x.astype(dtype), y.astype(dtype)
    x, y = rng.normal(size=(2, COUNT)) * 8
    x[:4], y[:4] = [0.0, -0.0, np.inf, 5e-8], [1.0, 1.0, 2.0, 6e-8]
    return x.astype(dtype), y.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int16, np.int32])
def test_binary(dtype: type[Any]) -> None:
    x, y = numbers(dtype)
    name = {np.float16: "half", np.float32: "float"}.get(dtype, np.dtype(dtype).name)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = [x + y, x - y, x * y, np.maximum(x, y), np.minimum(x, y)]
    np.testing.assert_array_equal(run_rows(f"binary_{name}", 5, x, y, dtype), np.array(expected))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int16, np.int32])
def test_scalar(dtype: type[Any]) -> None:
    x, y = numbers(dtype, 1)
    name = {np.float16: "half", np.float32: "float"}.get(dtype, np.dtype(dtype).name)
    three = dtype(3)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = [x + three, x * three, np.maximum(x, three), np.minimum(x, three)]
    np.testing.assert_array_equal(run_rows(f"scalar_{name}", 4, x, y, dtype), np.array(expected))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_functions(dtype: type[Any]) -> None:
    x, y = numbers(dtype, 2)
    x = np.clip(x, -80, 8).astype(dtype)
    y = (np.abs(y) + dtype(0.01)).astype(dtype)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    rows = run_rows(f"float_{'half' if dtype is np.float16 else 'float'}", 4, x, y, dtype)
    exact = [wide / other, None, None, np.abs(wide)]
    close = {1: np.exp(wide), 2: np.log(other)}
    for row, expected in enumerate(exact):
        if expected is not None:
            np.testing.assert_array_equal(rows[row], expected.astype(dtype), err_msg=f"row {row}")
    for row, reference in close.items():
        np.testing.assert_array_max_ulp(rows[row], reference.astype(dtype), maxulp=1 if dtype is np.float16 else 2)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_bits(dtype: type[Any]) -> None:
    x, y = numbers(dtype, 3)
    rows = run_rows(f"bits_{np.dtype(dtype).name}", 2, x, y, dtype)
    np.testing.assert_array_equal(rows, np.array([x & y, x | y]))


@pytest.mark.parametrize(
    ("entry", "source", "result"),
    [
        ("accumulate_half", np.float16, np.float16),
        ("accumulate_float", np.float32, np.float32),
        ("accumulate_mixed", np.float16, np.float32),
    ],
)
def test_multiply_add_rounds_the_product_and_the_sum(entry: str, source: type[Any], result: type[Any]) -> None:
    x, y = numbers(source, 5)
    x[2] = 3
    rows = run_rows(entry, 2, x, y, result)
    start = result(0.375)
    product = (x.astype(np.float32) * y.astype(np.float32)).astype(result)
    scaled = (x.astype(np.float32) * np.float32(1.625)).astype(result)
    np.testing.assert_array_equal(rows, np.array([start + product, start + scaled]))


# ---- strides ------------------------------------------------------------------------------------------------------

Lanes = npt.NDArray[np.int64]


def lanes(dtype: type[Any], block: int, repeat: int, repeats: int, width: int) -> Lanes:
    """Element indices [repeats, width] of an operand: block and repeat strides in blocks of 32 bytes."""
    per_block = 32 // np.dtype(dtype).itemsize
    lane = np.arange(width)
    offset = lane // per_block * block * per_block + lane % per_block
    return np.arange(repeats)[:, None] * repeat * per_block + offset


def bits(low: int, high: int = 0) -> npt.NDArray[np.bool_]:
    return np.array([(low | high << 64) >> bit & 1 for bit in range(128)], bool)


def run_strided(entry: str, source: type[Any], result: type[Any]) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(7)
    x, y = (rng.integers(-50, 50, (2, SIZE)) / 8).astype(source)
    z = np.zeros(SIZE, result)
    run_kernel(
        Kernel(KERNELS / "api_strided.cpp", entry=entry), [("x", x, "in"), ("y", y, "in"), ("z", z, "out")]
    ).require_clean()
    return x, y, z


def expect(z: Array, to: Lanes, values: npt.ArrayLike) -> None:
    expected = np.full(SIZE, -1, z.dtype)
    expected[to] = values
    np.testing.assert_array_equal(z, expected)


def test_destination_with_gaps() -> None:
    x, y, z = run_strided("add_gaps", np.float32, np.float32)
    d, a, b = (lanes(np.float32, *strides, 4, 50) for strides in ((2, 17), (1, 8), (1, 9)))
    expect(z, d, x[a] + y[b])


def test_sources_are_broadcast_by_strides_of_zero() -> None:
    x, y, z = run_strided("mul_broadcast", np.float32, np.float32)
    d, a, b = (lanes(np.float32, *strides, 8, 64) for strides in ((1, 8), (1, 8), (0, 1)))
    expect(z, d, x[a] * y[b])


def test_cast_takes_a_panel_of_columns_out_of_int8_rows() -> None:
    x, _, z = run_strided("cast_panel", np.int8, np.float16)
    expected = x.reshape(8, 128)[:7, 32:64].astype(np.float16)  # of the second repeat three rows
    np.testing.assert_array_equal(z[: 7 * 32].reshape(7, 32), expected)
    assert (z[7 * 32 :] == -1).all()


def test_mask_with_holes() -> None:
    x, y, z = run_strided("sub_bits", np.float16, np.float16)
    chosen = bits(0x8000FFFF00FF1235, 0xF00F)
    d, a, b = (lanes(np.float16, *strides, 3, 128)[:, chosen] for strides in ((1, 8), (1, 8), (2, 16)))
    expect(z, d, x[a] - y[b])


def test_half_sources_of_a_float_destination() -> None:
    x, y, z = run_strided("muladd_mixed", np.float16, np.float32)
    d = lanes(np.float32, 1, 8, 2, 64)
    a, b = (lanes(np.float16, *strides, 2, 64) for strides in ((0, 0), (8, 32)))
    expect(z, d, -1 + x[a].astype(np.float32) * y[b].astype(np.float32))


def test_half_sources_of_a_float_destination_with_a_mask() -> None:
    x, y, z = run_strided("muladd_masked", np.float16, np.float32)
    chosen = bits(0x00FF00FF0F0F8001)[:64]
    d = lanes(np.float32, 1, 8, 3, 64)[:, chosen]
    a = lanes(np.float16, 1, 4, 3, 64)[:, chosen]
    expect(z, d, -1 + x[a].astype(np.float32) * y[a].astype(np.float32))


def test_rows_are_added_up_through_the_second_source() -> None:
    x, _, z = run_strided("add_carry", np.float32, np.float32)
    expect(z, np.arange(64), x[: 6 * 64].reshape(6, 64).sum(axis=0) - 1)


def test_in_place() -> None:
    x, _, z = run_strided("exp_in_place", np.float32, np.float32)
    np.testing.assert_array_equal(z, np.concatenate([np.abs(x[:256]), x[256:]]))


def test_axpy_with_gaps() -> None:
    x, _, z = run_strided("axpy_gaps", np.float16, np.float32)
    d, a = lanes(np.float32, 1, 10, 5, 33), lanes(np.float16, 2, 7, 5, 33)
    expect(z, d, -1 + x[a].astype(np.float32) * np.float32(2.5))


def test_cast_counts_lanes_of_the_wider_type() -> None:
    x, _, z = run_strided("cast_gaps", np.float16, np.float32)
    expect(z, lanes(np.float32, 1, 16, 3, 64), x[lanes(np.float16, 1, 4, 3, 64)])


def test_mask_register_in_both_modes() -> None:
    x, _, z = run_strided("muls_register", np.float32, np.float32)
    expected = np.full(SIZE, -1, np.float32)
    first = lanes(np.float32, 1, 8, 4, 8)
    expected[first] = x[first] * 2
    expected[512:582] = x[512:582] * 2
    np.testing.assert_array_equal(z, expected)


def test_a_mask_stays_in_the_register_and_a_count_resets_it() -> None:
    x, _, z = run_strided("mask_remains", np.float32, np.float32)
    expected = np.full(SIZE, -1, np.float32)
    expected[:5], expected[64:69], expected[128:131], expected[192:256] = x[:5] * 2, x[:5] * 3, x[:3] * 2, x[:64] * 3
    np.testing.assert_array_equal(z, expected)


def test_duplicate_with_gaps() -> None:
    _, _, z = run_strided("duplicate_gaps", np.float16, np.float16)
    expect(z, lanes(np.float16, 3, 24, 2, 100), np.float16(4))


@pytest.mark.parametrize(
    ("entry", "dtype", "block", "repeat", "repeats"),
    [("brcb_float", np.float32, 2, 20, 3), ("brcb_half", np.float16, 1, 8, 2)],
)
def test_brcb(entry: str, dtype: type[Any], block: int, repeat: int, repeats: int) -> None:
    x, _, z = run_strided(entry, dtype, dtype)
    per_block = 32 // np.dtype(dtype).itemsize
    values = np.repeat(x[: 8 * repeats].reshape(repeats, 8), per_block, axis=1)
    expect(z, lanes(dtype, block, repeat, repeats, 8 * per_block), values)


def test_a_count_of_zero_does_nothing() -> None:
    _, _, z = run_strided("nothing_for_a_count_of_zero", np.float32, np.float32)
    np.testing.assert_array_equal(z, np.full(SIZE, -1, np.float32))
