"""The cube core of the host model on int8: products against numpy, rows copied as one, modelled cycles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator.ascendc import Kernel, KernelRun, run_kernel
from emulator.tests.test_api_cube import RNG, SOURCE, Array, Product, busy_cycles, product_of


def random_bytes(rows: int, stride: int) -> Array:
    return RNG.integers(-128, 128, (rows, stride), np.int8)


def exact_integers(left: Array, right: Array) -> Array:
    return left.astype(np.int64) @ right.astype(np.int64).T


def multiply_bytes(product: Product, left: Array, right: Array, **options: Any) -> tuple[KernelRun, Array]:
    result = np.full((product.m, product.result_stride), -7, np.int32)
    arguments: list[Any] = [
        ("left", left, "in"),
        ("right", right, "in"),
        ("result", result, "inout"),
        ("tiling", product.tiling(), "in"),
    ]
    run = run_kernel(Kernel(SOURCE, entry="multiply_int8"), arguments, **options)
    assert (result[:, product.n :] == -7).all()
    return run, result[:, : product.n]


@pytest.mark.parametrize(
    "product",
    [
        product_of(16, 16, 32),
        product_of(8, 256, 128, columns=128),
        product_of(16, 512, 64, gap=5),
        product_of(2, 33, 96, gap=32),
        product_of(5, 20, 23),
        product_of(1, 40, 40),
        product_of(1, 7, 2000),
        product_of(40, 48, 64),
        product_of(4, 160, 128, steps=2),
    ],
    ids=str,
)
def test_products_of_8_bits_are_exact(product: Product) -> None:
    left = random_bytes(product.m, product.left_stride)
    right = random_bytes(product.n, product.right_stride)
    run, result = multiply_bytes(product, left, right)
    run.require_clean()
    np.testing.assert_array_equal(result, exact_integers(left[:, : product.k], right[:, : product.k]))


def test_the_largest_sums_of_8_bits() -> None:
    product = product_of(2, 16, 512)
    lowest = np.full((16, 512), -128, np.int8)
    _, result = multiply_bytes(product, lowest[:2], lowest)
    assert (result == 512 * 128 * 128).all()


@pytest.mark.parametrize("fold", [1, 2, 4])
def test_rows_as_one(fold: int) -> None:
    """Every second or fourth row first, as the page on DataCopy with Nd2NzParams has the pieces of a row."""
    left, right = random_bytes(4, 64), random_bytes(32, 64)
    result = np.zeros((4, 32), np.int32)
    arguments: list[Any] = [
        ("left", left, "in"),
        ("right", right, "in"),
        ("result", result, "out"),
        ("tiling", np.uint32(fold).tobytes(), "in"),
    ]
    run_kernel(Kernel(SOURCE, entry="rows_as_one"), arguments).require_clean()
    order = np.arange(32).reshape(-1, fold).T.ravel()
    np.testing.assert_array_equal(result, exact_integers(left, right[order]))


def test_cycles_of_8_bits() -> None:
    """A fractal of each side in a cycle, twice as deep as with 16 bits; rows into L1 cost their bytes."""

    def busy(pipe: str, n: int, k: int) -> float:
        product = product_of(16, n, k)
        run, _ = multiply_bytes(product, random_bytes(16, k), random_bytes(n, k))
        return run.require_clean().timeline("hot").busy_cycles(pipe, kind="cube")

    assert busy("M", 64, 128) - busy("M", 64, 64) == 4 * 2
    assert busy("M", 64, 128) == busy_cycles(product_of(16, 64, 64), "M")
    assert (busy("MTE2", 256, 128) - busy("MTE2", 1, 128)) / 255 == pytest.approx(5.33, rel=0.01)
