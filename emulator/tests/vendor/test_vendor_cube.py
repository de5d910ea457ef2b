"""Products of the vendor's library, as its own compiler made it, over the host model's cube core, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator.ascendc import KernelError
from emulator.tests.vendor import cube
from emulator.tests.vendor.bench import Tensor, call, needs_library
from emulator.tests.vendor.replay import IMAGE_BYTES

pytestmark = needs_library
_L1_RIGHT = 32 * 1024  # where the second operand begins in L1
_RESULT = 48 * 1024  # where the result begins in global memory
#: Operand and result of the library's names, numpy's types, elements in a row of a fractal.
TYPES: dict[str, tuple[str, type[Any], type[Any], int]] = {
    "int8_t": ("int32_t", np.int8, np.int32, 32),
    "half": ("float", np.float16, np.float32, 16),
}


def fractals(address: int, dtype: Any, rows: int, columns: int, depth: int) -> Tensor:
    """A matrix whose fractals lie column by column."""
    high, wide = -(-rows // 16), -(-columns // depth)
    strides = (high * 16 * depth, 16 * depth, depth, 1)
    return Tensor("cube", address, np.dtype(dtype), (wide, high, 16, depth), strides)


def rows_of(address: int, dtype: Any, rows: int, columns: int, row: int) -> Tensor:
    return Tensor("global", address, np.dtype(dtype), (rows, columns), (row, 1))


def multiply(name: str, m: int, n: int, k: int) -> cube.CubeCore:
    """left [m, k] times right [n, k] transposed, all three with gaps between their rows; compares every byte."""
    result_name, dtype, sums, depth = TYPES[name]
    rng = np.random.default_rng(9)
    core = cube.CubeCore(rng.integers(0, 256, IMAGE_BYTES, np.uint8))
    left, right = rows_of(0, dtype, m, k, k + 32), rows_of(16 * 1024, dtype, n, k, k + 64)
    left.view(core.outside)[...] = x = rng.integers(-9, 9, (m, k)).astype(dtype)
    right.view(core.outside)[...] = y = rng.integers(-9, 9, (n, k)).astype(dtype)
    result = rows_of(_RESULT, sums, m, n, n + 12)
    expected = core.outside.copy()
    result.view(expected)[...] = x.astype(np.int64) @ y.T.astype(np.int64)
    first, second = fractals(0, dtype, m, k, depth), fractals(_L1_RIGHT, dtype, n, k, depth)
    product = fractals(0, sums, m, n, 16)
    call("aic", core, f"nd2nz_{name}", [left, first])
    call("aic", core, f"nd2nz_{name}", [right, second])
    call("aic", core, f"mma_tile_{name}_to_{result_name}_tb", [first, second, 1, m, k, n, product, *[0] * 8])
    call("aic", core, f"fixpipe_nz2nd_{result_name}_to_{result_name}_4d_to_2d", [product, result, *[0] * 4])
    core.finish()
    np.testing.assert_array_equal(result.view(core.outside), result.view(expected))
    np.testing.assert_array_equal(core.outside, expected)
    return core


# the library wants 32 columns or more
@pytest.mark.parametrize(("m", "n", "k"), [(16, 32, 32), (16, 48, 64), (32, 32, 128), (48, 96, 64), (10, 32, 64)])
def test_product_of_int8(m: int, n: int, k: int) -> None:
    core = multiply("int8_t", m, n, k)
    assert {name.split(".")[0] for name in core.intrinsics} == {"MOV", "LOAD", "MAD", "FIX"}


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 16), (16, 48, 64), (16, 96, 128), (10, 32, 64)])
def test_product_of_half(m: int, n: int, k: int) -> None:
    multiply("half", m, n, k)


@pytest.mark.parametrize("field", ["dstNzC0Stride", "srcDValue", "srcStride", "k", "m", "dstStride"])
def test_an_operand_that_is_read_elsewhere_is_found(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cube.unpack

    def moved(word: int, fields: cube.Fields) -> dict[str, int]:
        values = real(word, fields)
        return values | {field: values[field] * 2} if field in values else values

    monkeypatch.setattr(cube, "unpack", moved)
    with pytest.raises((AssertionError, KernelError)):
        multiply("int8_t", 32, 48, 64)
