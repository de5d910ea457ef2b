"""Data movement of the host model against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.ascendc import Kernel, run_kernel

Array = npt.NDArray[Any]
SOURCE = Path(__file__).parent / "kernels" / "api_copies.cpp"


def run_copy(entry: str, dtype: type[Any], size_in: int, size_out: int) -> tuple[Array, Array]:
    x = np.arange(1, size_in + 1).astype(dtype)
    z = np.zeros(size_out, dtype)
    run_kernel(Kernel(SOURCE, entry=entry), [("x", x, "in"), ("z", z, "out")]).require_clean()
    return x, z


def test_blocks_with_gaps_into_the_buffer() -> None:
    x, z = run_copy("copy_in_blocks", np.float32, 128, 128)
    expected = np.full(128, -1, np.float32)
    for piece in range(3):
        expected[piece * 40 : piece * 40 + 16] = x[piece * 24 : piece * 24 + 16]
    np.testing.assert_array_equal(z, expected)


def test_blocks_with_gaps_out_of_the_buffer() -> None:
    x, z = run_copy("copy_out_blocks", np.float32, 128, 128)
    expected = np.full(128, -1, np.float32)
    for piece in range(3):
        expected[piece * 24 : piece * 24 + 16] = x[piece * 40 : piece * 40 + 16]
    np.testing.assert_array_equal(z, expected)


def test_inside_the_buffer() -> None:
    x, z = run_copy("copy_inside", np.float32, 128, 128)
    expected = np.full(128, -1, np.float32)
    expected[:32] = x[64:96]
    expected[64:72], expected[80:88] = x[:8], x[24:32]
    np.testing.assert_array_equal(z, expected)


def test_count() -> None:
    x, z = run_copy("copy_count", np.float16, 256, 240)
    np.testing.assert_array_equal(z, x[16:])


def test_traffic_counts_the_commands_that_go_past_the_l2() -> None:
    x, z = np.ones(256, np.float16), np.zeros(240, np.float16)
    traffic = run_kernel(Kernel(SOURCE, entry="copy_count"), [("x", x, "in"), ("z", z, "out")]).traffic
    assert (traffic["x"].commands_past_l2, traffic["x"].read_commands) == (0, 1)
    assert (traffic["z"].commands_past_l2, traffic["z"].write_commands) == (1, 1)


def test_padding_with_a_value() -> None:
    x, z = run_copy("pad_in_value", np.float32, 128, 96)
    expected = np.full((4, 24), -1, np.float32)
    for piece in range(4):
        expected[piece, :16] = 7
        expected[piece, 2:7] = x[piece * 8 : piece * 8 + 5]
    np.testing.assert_array_equal(z, expected.ravel())


def test_pieces_out_of_the_buffer() -> None:
    x, z = run_copy("pad_out", np.float32, 128, 64)
    expected = np.full(64, -1, np.float32)
    for piece in range(3):
        expected[2 + piece * 9 : 7 + piece * 9] = x[piece * 16 : piece * 16 + 5]
    np.testing.assert_array_equal(z, expected)


def test_scalar_accesses() -> None:
    x, z = run_copy("scalar_accesses", np.int32, 16, 16)
    expected = x.copy()
    expected[1], expected[4], expected[5] = x[0] + x[5], x[7] + 8, 32
    np.testing.assert_array_equal(z, expected)
