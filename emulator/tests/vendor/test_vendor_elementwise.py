"""Functions of the vendor's library, as its own compiler made them, over the host model's instructions, against numpy.

The compiler's code packs every operand of an instruction into a 64-bit word. What it means by them is what its function
does: so the host model reads strides, repeats, masks and counts as the vendor's compiler writes them, or a test fails.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emulator.tests.vendor.bench import SHORT, SIZES, TYPES, Array, Bench, needs_library, numbers, part

pytestmark = needs_library
#: How far Exp, Ln and Div may be off, which are the host's functions.
ROUNDED = {"float": 1e-6, "half": 1e-3}
BINARY: dict[str, Callable[..., Any]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vmul": np.multiply,
    "vmax": np.maximum,
    "vmin": np.minimum,
}
SCALAR: dict[str, Callable[..., Any]] = {
    "vadds": np.add,
    "vmuls": np.multiply,
    "vmaxs": np.maximum,
    "vmins": np.minimum,
}


# ---- elementwise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("function", BINARY)
def test_binary(function: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, y = numbers(dtype, size), numbers(dtype, size, seed=2)
    out = bench.empty(dtype, size)
    bench.call(f"{function}_1d_{name}", bench.tensor(x), bench.tensor(y), out, bench.scratch(dtype, 512))
    bench.check([(out, BINARY[function](x, y))])
    assert bench.intrinsics == {f"{function.upper()}.{SHORT[name]}"}


@pytest.mark.parametrize("shape", [(1, 8), (5, 100), (40, 64), (260, 8), (3, 700)])
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", BINARY)
def test_binary_of_rows_with_gaps(function: str, name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    row = -(-shape[1] // 16) * 16
    x, y = numbers(dtype, *shape), numbers(dtype, *shape, seed=2)
    first, second = bench.tensor(x, row), bench.tensor(y, row)
    out = bench.empty(dtype, *shape, row=row + 16)
    bench.call(f"{function}_2d_{name}", first, second, out, bench.scratch(dtype, 16))
    bench.check([(out, BINARY[function](x, y))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("function", SCALAR)
def test_with_scalar(function: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, scalar = numbers(dtype, size), dtype(7)
    out = bench.empty(dtype, size)
    bench.call(f"{function}_vs_1d_{name}", bench.tensor(x), scalar, out, bench.scratch(dtype, 512))
    bench.check([(out, SCALAR[function](x, scalar))])
    assert bench.intrinsics == {f"{function.upper()}.{SHORT[name]}"}


@pytest.mark.parametrize("shape", [(5, 100), (260, 8)])
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", SCALAR)
def test_with_scalar_in_rows_with_gaps(function: str, name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    row = -(-shape[1] // 16) * 16
    x, scalar = numbers(dtype, *shape), dtype(7)
    out = bench.empty(dtype, *shape, row=row + 16)
    bench.call(f"{function}_vs_2d_{name}", bench.tensor(x, row), scalar, out, bench.scratch(dtype, 512))
    bench.check([(out, SCALAR[function](x, scalar))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", ["vexp", "vln", "vabs"])
def test_unary(function: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = np.random.default_rng(3).uniform(0.5, 4, size).astype(dtype)
    out = bench.empty(dtype, size)
    bench.call(f"{function}_1d_{name}", bench.tensor(x), out, bench.scratch(dtype, 512))
    bench.check([(out, {"vexp": np.exp, "vln": np.log, "vabs": np.abs}[function](x))], ROUNDED[name])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["float", "half"])
def test_division(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, y = numbers(dtype, size), numbers(dtype, size, seed=2) * 2 + dtype(1)
    out = bench.empty(dtype, size)
    bench.call(f"vdiv_1d_{name}", bench.tensor(x), bench.tensor(y), out, bench.scratch(dtype, 512))
    bench.check([(out, x / y)], ROUNDED[name])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", ["vand", "vor"])
def test_bits(function: str, size: int) -> None:
    bench = Bench()
    x, y = numbers(np.int16, size), numbers(np.int16, size, seed=2)
    out = bench.empty(np.int16, size)
    bench.call(f"{function}_1d_int16_t", bench.tensor(x), bench.tensor(y), out, bench.scratch(np.int16, 512))
    bench.check([(out, x & y if function == "vand" else x | y)])


# ---- conversions -------------------------------------------------------------------------------------------------

#: As the library numbers them.
MODES: dict[int, Callable[[Array], Array]] = {
    0: np.rint,
    1: lambda x: np.trunc(x + np.copysign(0.5, x)),
    2: np.floor,
    3: np.ceil,
    4: np.trunc,
}
CASTS = [("float", "int32_t"), ("half", "int32_t"), ("half", "int8_t"), ("int32_t", "float"), ("int8_t", "half")]
ALL_TYPES = {**TYPES, "int8_t": np.int8}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("source", "target"), CASTS)
def test_cast(source: str, target: str, mode: int, size: int) -> None:
    bench = Bench()
    x = numbers(np.float32, size) + (np.float32(0.5) if source in ("float", "half") else np.float32(0))
    x = x.astype(ALL_TYPES[source])
    out = bench.empty(ALL_TYPES[target], size)
    bench.call(f"vcast_{source}_to_{target}_1d_with_mode", bench.tensor(x), out, mode)
    bench.check([(out, MODES[mode](x).astype(ALL_TYPES[target]))])


@pytest.mark.parametrize("size", SIZES)
def test_cast_between_floats(size: int) -> None:
    bench = Bench()
    x = np.random.default_rng(3).uniform(-4, 4, size).astype(np.float32)
    half, back = bench.empty(np.float16, size), bench.empty(np.float32, size)
    bench.call("vcast_float_to_half_1d_with_mode", bench.tensor(x), half, 0)
    bench.call("vcast_half_to_float_1d_with_mode", half, back, 0)
    bench.check([(half, x.astype(np.float16)), (back, x.astype(np.float16).astype(np.float32))])


@pytest.mark.parametrize("size", SIZES)
def test_cast_to_bfloat16_and_back(size: int) -> None:
    bench = Bench()
    x = numbers(np.float32, size)  # so few bits that none is rounded
    bits, back = bench.empty(np.uint16, size), bench.empty(np.float32, size)
    bench.call("vcast_float_to_bfloat16_t_1d_with_mode", bench.tensor(x), bits, 0)
    bench.call("vcast_bfloat16_t_to_float_1d_with_mode", bits, back, 0)
    bench.check([(bits, (x.view(np.uint32) >> 16).astype(np.uint16)), (back, x)])


# ---- compare and select ------------------------------------------------------------------------------------------

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt,
    "lt": operator.lt,
    "ge": operator.ge,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", COMPARISONS)
def test_compare(function: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    whole = -(-size // 128) * 128  # results come for whole repeats
    x = numbers(dtype, whole)
    out = bench.empty(np.uint8, whole // 8)
    bench.leave_open(out, -(-size // 8), whole // 8 - -(-size // 8))
    bench.call(f"vcmps_{function}_1d_{name}", part(bench.tensor(x), size), dtype(3), part(out, size))
    bits = np.packbits(COMPARISONS[function](x, dtype(3)), bitorder="little")[: -(-size // 8)]
    bench.check([(part(out, len(bits)), bits)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("form", ["vv", "vs", "sv", "ss"])
def test_select(form: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    chosen = np.random.default_rng(4).integers(0, 2, size).astype(bool)
    tensors, scalars = [numbers(dtype, size), numbers(dtype, size, seed=2)], [dtype(3), dtype(-5)]
    values: list[Any] = [(tensors if kind == "v" else scalars)[place] for place, kind in enumerate(form)]
    condition = bench.tensor(np.packbits(chosen, bitorder="little"))
    sources = [bench.tensor(value) if isinstance(value, np.ndarray) else value for value in values]
    out = bench.empty(dtype, size)
    function = f"vsel_{form}_1d_{'bool_' if form == 'vv' else ''}{name}"
    bench.call(function, part(condition, size), *sources, out, bench.scratch(np.int64, 24))
    bench.check([(out, np.where(chosen, *values).astype(dtype))])
