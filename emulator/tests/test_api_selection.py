"""CompareScalar, Select, GatherMask, Gather and index vectors of the host model against numpy, exactly."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulator.ascendc import Argument, Kernel, KernelRun, run_kernel

Array = npt.NDArray[Any]
SOURCE = Path(__file__).parent / "kernels" / "api_selection.cpp"
SIZE = 512
MODES = (operator.lt, operator.gt, operator.eq, operator.le, operator.ge, operator.ne)
NAMES: dict[type[Any], str] = {np.float16: "half", np.float32: "float"}


def run(entry: str, *arguments: Argument, **options: Any) -> KernelRun:
    return run_kernel(Kernel(SOURCE, entry=entry), arguments, **options).require_clean()


def packed(mask: Array) -> Array:
    return np.packbits(mask, bitorder="little")


def numbers(dtype: type[Any], size: int = SIZE) -> tuple[Array, Array]:
    rng = np.random.default_rng(11)
    x, y = rng.integers(-3, 4, (2, size)).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        x[::17], y[::13] = np.nan, np.nan
        x[5], y[5] = 0.0, -0.0
    return x, y


# ---- CompareScalar ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_compare(dtype: type[Any]) -> None:
    x, _ = numbers(dtype)
    z = np.zeros((len(MODES), SIZE // 8), np.uint8)
    run(f"compare_{NAMES[dtype]}", ("x", x, "in"), ("z", z, "out"))
    np.testing.assert_array_equal(z, np.array([packed(mode(x, dtype(1))) for mode in MODES]))


def test_compare_int32_for_equality() -> None:
    x, _ = numbers(np.int32)
    z = np.zeros(SIZE // 8, np.uint8)
    run("compare_int32", ("x", x, "in"), ("z", z, "out"))
    np.testing.assert_array_equal(z, packed(x == 1))


def test_compare_with_repeats_packs_the_results() -> None:
    x, _ = numbers(np.float32)
    z = np.zeros(16, np.uint8)
    run("compare_repeats", ("x", x, "in"), ("z", z, "out"))
    lane = np.arange(64)
    strided = np.arange(2)[:, None] * 64 + lane // 8 * 16 + lane % 8
    np.testing.assert_array_equal(z, packed(x[strided] > 1).ravel())


def test_compare_of_more_than_255_repeats_is_split() -> None:
    x, _ = numbers(np.float32, 320 * 64)
    z = np.zeros(320 * 8, np.uint8)
    done = run("compare_long", ("x", x, "in"), ("z", z, "out"))
    np.testing.assert_array_equal(z, packed(x > 1))
    assert done.timeline("hot").busy_cycles("V") == pytest.approx(2 * 22 + 320)


# ---- Select -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_select(dtype: type[Any]) -> None:
    x, y = numbers(dtype)
    bits = np.random.default_rng(3).integers(0, 256, SIZE // 8).astype(np.uint8)
    chosen = np.unpackbits(bits, bitorder="little").astype(bool)
    z = np.zeros((3, SIZE), dtype)
    run(f"select_{NAMES[dtype]}", ("x", x, "in"), ("y", y, "in"), ("m", bits, "in"), ("z", z, "out"))
    width = 256 // np.dtype(dtype).itemsize
    state = np.full(SIZE, -9, dtype)
    state[:300] = np.where(chosen, x, dtype(2))[:300]
    np.testing.assert_array_equal(z[0], state)
    at = np.arange(3)[:, None] * width + np.arange(40)
    per_block = width // 8
    other = np.arange(3)[:, None] * per_block + np.arange(40) % per_block
    state[at] = np.where(chosen[at], x[at], y[other])
    np.testing.assert_array_equal(z[1], state)
    at = (np.arange(2)[:, None] * width + np.array([4, 5, 6, 7, 12, 13, 14, 15])).ravel()
    state[at] = np.where(chosen[at], x[at], dtype(3))
    np.testing.assert_array_equal(z[2], state)


# ---- GatherMask and Gather ----------------------------------------------------------------------------------------


def run_gather(dtype: type[Any], **options: Any) -> tuple[Array, Array, Array, Array]:
    x = np.arange(SIZE).astype(dtype)
    bits = np.random.default_rng(5).integers(0, 256, SIZE // 2).astype(np.uint8)
    z = np.zeros((4, SIZE), dtype)
    counts = np.zeros((4, 2), np.int32)
    run(f"gather_{NAMES[dtype]}", ("x", x, "in"), ("p", bits, "in"), ("z", z, "inout"), ("n", counts, "out"), **options)
    return x, np.unpackbits(bits, bitorder="little").astype(bool), z, counts


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gather_mask(dtype: type[Any]) -> None:
    x, chosen, z, counts = run_gather(dtype)
    item = np.dtype(dtype).itemsize
    width, per_block = 256 // item, 32 // item
    lane = np.arange(width)
    expected = [x[chosen[:SIZE]]]
    expected.append(np.concatenate([x[r * 10 * per_block :][:70][chosen[r * 256 :][:70]] for r in range(3)]))
    expected.append(np.concatenate([x[r * width :][:width][chosen[:width]] for r in range(2)]))
    spread = lane // per_block * 2 * per_block + lane % per_block
    expected.append(np.concatenate([x[r * 3 * per_block + spread][chosen[r * 256 :][:width]] for r in range(2)]))
    np.testing.assert_array_equal(counts[:, 0], [len(row) for row in expected])
    for row, values in enumerate(expected):
        np.testing.assert_array_equal(z[row, : len(values)], values, err_msg=f"row {row}")


def test_the_count_of_the_call_itself_is_unfinished_without_auto_sync() -> None:
    assert (run_gather(np.float32)[3][:, 1] == -1).all()
    counts = run_gather(np.float32, auto_sync=True)[3]
    np.testing.assert_array_equal(counts[:, 0], counts[:, 1])


def test_gather_mask_in_place() -> None:
    x = np.arange(256).astype(np.float32)
    z = np.zeros(128, np.float32)
    run("gather_in_place", ("x", x, "in"), ("z", z, "out"))
    np.testing.assert_array_equal(z, x[1::2])


def test_gather_by_byte_offsets() -> None:
    x = np.arange(SIZE).astype(np.float32)
    index = np.random.default_rng(2).integers(0, SIZE - 2, 128).astype(np.uint32)
    z = np.zeros(128, np.float32)
    run("gather_offsets", ("x", x, "in"), ("o", index * np.uint32(4), "in"), ("z", z, "out"))
    expected = np.full(128, -9, np.float32)
    expected[:100] = x[index[:100] + 2]
    np.testing.assert_array_equal(z, expected)


# ---- index vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"), [("int16", np.int16), ("int32", np.int32), ("half", np.float16), ("float", np.float32)]
)
def test_index_vectors(name: str, dtype: type[Any]) -> None:
    z = np.zeros((6, SIZE), dtype)
    run(f"index_{name}", ("z", z, "out"))
    per_block = 32 // np.dtype(dtype).itemsize
    for row, count in enumerate((5, 8, 60, 64, 130, 511)):
        written = max(count, per_block)  # the first block is always whole
        expected = np.full(SIZE, -9, dtype)
        expected[:written] = 3 + np.arange(written)
        np.testing.assert_array_equal(z[row], expected, err_msg=f"count {count}")
