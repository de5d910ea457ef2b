"""Reductions, broadcasts, gathers and copies of the vendor's library over the host model, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emulator.tests.vendor.bench import SHORT, SIZES, TYPES, Bench, needs_library, numbers, part

pytestmark = needs_library

# ---- reductions --------------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max}


@pytest.mark.parametrize("shape", [(4, 8), (300, 8), (4, 16), (5, 40), (4, 64), (4, 128), (7, 200)])
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", REDUCTIONS)
def test_reduction_of_rows(function: str, name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, *shape)
    if name == "half" and shape[1] % 16:
        shape, x = (shape[0], 16), numbers(dtype, shape[0], 16)
    out = bench.empty(dtype, shape[0], 1)
    start = dtype({"sum": 0, "max": -np.inf}[function])
    bench.call(f"enablevc_reduce_{function}_ar_{name}", bench.tensor(x), out, bench.scratch(dtype, 4096), start)
    bench.check([(out, REDUCTIONS[function](x, axis=1, keepdims=True).astype(dtype))])


@pytest.mark.parametrize("columns", [8, 40, 64])
def test_maximum_of_rows_and_where_it_stands(columns: int) -> None:
    bench = Bench()
    x = numbers(np.float32, 5, columns)  # the first one of several counts
    values, places = bench.empty(np.float32, 5, 1), bench.empty(np.int32, 5, 1)
    bench.call(
        "reduce_max_with_index_left_ar_float",
        bench.tensor(x),
        values,
        places,
        bench.scratch(np.float32, 512),
        np.float32(0),
    )
    where = np.argmax(x, axis=1, keepdims=True)
    bench.check([(values, np.take_along_axis(x, where, 1)), (places, where.astype(np.int32))])


# no longer rows: for a second level of blocks this version of the library reduces its source once more
@pytest.mark.parametrize("size", [64, 128, 512])
@pytest.mark.parametrize("name", ["float", "half"])
def test_maximum_by_blocks(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, 4, size)
    x[:, -1] = 100 + np.arange(4)  # one of its own in the last block of each row
    out = bench.empty(dtype, 4, 1)
    row = -(-size // 16) * 16
    bench.call(f"enablevcg_reduce_max_ar_{name}", bench.tensor(x, row), out, bench.scratch(dtype, 2048), dtype(-np.inf))
    bench.check([(out, np.max(x, axis=1, keepdims=True))])
    assert (f"VCGMAX.{SHORT[name]}" in bench.intrinsics) == (size * x.itemsize > 256)


@pytest.mark.parametrize("shape", [(4, 2), (100, 2), (330, 2), (4, 4), (100, 4)])
@pytest.mark.parametrize("name", ["float", "half"])
def test_sum_of_pairs(name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, *shape)
    out = bench.empty(dtype, shape[0], 1)
    bench.call(f"enablevc_reduce_sum_ar_{name}", bench.tensor(x), out, bench.scratch(dtype, 1024), dtype(0))
    bench.check([(out, x.sum(axis=1, keepdims=True))])
    assert bench.intrinsics == {f"VCPADD.{SHORT[name]}"}


@pytest.mark.parametrize("size", [*SIZES, 5000])
@pytest.mark.parametrize("name", ["float", "half"])
def test_sum(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = np.random.default_rng(5).integers(0, 2, size).astype(dtype) * dtype(0.25)
    out = bench.empty(dtype, 1)
    bench.call(f"enablevc_reduce_sum_r_{name}", bench.tensor(x), out, bench.scratch(dtype, 4096), dtype(0))
    bench.check([(out, x.astype(np.float64).sum(keepdims=True).astype(dtype))])


# ---- moves -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
def test_fill(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    out = bench.empty(dtype, size)
    bench.call(f"broadcast_scalar_{name}_to_1d", dtype(9), out)
    bench.check([(out, np.full(size, 9, dtype))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
def test_indices(name: str, size: int) -> None:
    bench = Bench()
    whole = max(size, 16)  # the first block comes whole
    out = bench.empty(TYPES[name], whole)
    bench.leave_open(out, size, whole - size)
    bench.call(f"arange_1d_{name}", part(out, size), 3, 1)
    bench.check([(part(out, size), np.arange(3, 3 + size).astype(TYPES[name]))])


@pytest.mark.parametrize("columns", [16, 32, 64, 96])
@pytest.mark.parametrize("rows", [8, 16, 40])
@pytest.mark.parametrize("name", TYPES)
def test_one_element_to_a_row(name: str, rows: int, columns: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, rows, 1)
    out = bench.empty(dtype, rows, columns)
    scratch = bench.scratch(dtype, 2048)
    bench.call(f"broadcast_last_axis_align_2d_{name}", bench.tensor(x), out, scratch)
    bench.check([(out, np.repeat(x, columns, axis=1))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
def test_elements_whose_bit_is_set(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, chosen = numbers(dtype, size), np.random.default_rng(4).integers(0, 2, size).astype(bool)
    kept = x[chosen]
    bits = bench.tensor(np.packbits(chosen, bitorder="little"))
    out, count = bench.empty(dtype, size + 16), bench.empty(np.int64, 1)
    bench.leave_open(out, len(kept), -len(kept) % 16)
    bench.call(f"vgathermask_1d_{name}", bench.tensor(x), part(bits, size), part(out, size), count)
    bench.check([(part(out, len(kept)), kept), (count, np.array([len(kept)]))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
def test_gather(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, index = numbers(dtype, 300), np.random.default_rng(6).integers(0, 300, size).astype(np.int32)
    source, positions, out = bench.tensor(x), bench.tensor(index), bench.empty(dtype, size)
    bench.call(f"gather_1d_{name}", source, positions, out, bench.scratch(np.int32, 1024))
    bench.check([(out, x[index])])


# ---- copies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8), (5, 64), (33, 16)])
@pytest.mark.parametrize("name", TYPES)
def test_copy_inside(name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x, row = numbers(dtype, *shape), -(-shape[1] // 16) * 16
    out = bench.empty(dtype, *shape, row=row + 32)
    if shape[1] % 16:  # whole blocks are copied
        bench.leave_open(out, shape[1], 16 - shape[1] % 16)
    bench.call(f"copy_ubuf_to_ubuf_2d_{name}", bench.tensor(x, row + 16), out)
    bench.check([(out, x)])


@pytest.mark.parametrize("shape", [(1, 1), (5, 60), (33, 17), (7, 64)])
@pytest.mark.parametrize("name", TYPES)
def test_copy_in_and_out(name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x, row = numbers(dtype, *shape), -(-shape[1] // 16) * 16
    source, target = (
        bench.tensor(x, shape[1] + 3, memory="global"),
        bench.empty(dtype, *shape, row=shape[1] + 5, memory="global"),
    )
    inside = bench.empty(dtype, *shape, row=row + 32)
    for first in range(shape[1], shape[1] + (row + 32) * shape[0], row + 32):
        bench.leave_open(inside, first, row - shape[1])  # up to the end of the block
    bench.call(f"load_gm_to_ubuf_2d_{name}", source, inside, 0, dtype(0), 0)
    bench.call(f"store_ubuf_to_gm_2d_{name}", inside, target, 0)
    bench.check([(inside, x), (target, x)])
