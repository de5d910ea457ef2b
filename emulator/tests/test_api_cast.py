"""Cast of the host model in every RoundMode, against numbers worked out with exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from emulator.ascendc import Kernel, run_kernel

Array = npt.NDArray[Any]
SOURCE = Path(__file__).parent / "kernels" / "api_cast.cpp"
ROUNDING = ("RINT", "FLOOR", "CEIL", "ROUND", "TRUNC")
ALL_MODES = ("NONE", *ROUNDING, "ODD")


def run_cast(entry: str, x: Array, result: npt.DTypeLike, modes: int) -> Array:
    z = np.zeros((modes, x.size), result)
    size = np.array([x.size], np.uint32)
    run_kernel(
        Kernel(SOURCE, entry=entry), [("x", x, "in"), ("z", z, "out"), ("size", size, "in")], trace=False
    ).require_clean()
    return z


def to_integer(value: Fraction, mode: str) -> int:
    below = math.floor(value)
    rest = value - below
    if mode == "FLOOR" or rest == 0:
        return below
    if mode == "CEIL":
        return below + 1
    if mode == "TRUNC":
        return below + (value < 0)
    if rest != Fraction(1, 2):
        return below + (rest > Fraction(1, 2))
    return below + (value > 0 if mode == "ROUND" else below % 2)


def to_float(value: float, mode: str, digits: int, least_exponent: int) -> Fraction:
    """`value` with `digits` binary digits, spaced by 2^least_exponent near zero."""
    if value == 0:
        return Fraction(0)
    unit = Fraction(2) ** max(math.frexp(value)[1] - digits, least_exponent)
    scaled = Fraction(value) / unit
    if mode == "ODD" and scaled.denominator != 1:
        below = math.floor(scaled)
        return (below if below % 2 else below + 1) * unit
    return to_integer(scaled, "RINT" if mode in ("NONE", "ODD") else mode) * unit


def floats(count: int, seed: int) -> Array:
    """Floats of all magnitudes that half has, with ties, subnormal numbers and zeros."""
    rng = np.random.default_rng(seed)
    wide = rng.normal(size=count) * 2.0 ** rng.integers(-26, 15, count)
    wide[::3] = (rng.integers(-4096, 4096, count) / 2 * 2.0 ** rng.integers(-26, 3, count))[::3]
    wide[:6] = [0.0, -0.0, 65504.0, -65504.0, 2.0**-25, -(2.0**-24)]
    return np.clip(wide, -65504, 65504).astype(np.float32)


def every_half() -> Array:
    return np.arange(65536, dtype=np.uint16).view(np.float16)


def test_every_half_becomes_the_same_float() -> None:
    x = every_half()
    np.testing.assert_array_equal(run_cast("half_to_float", x, np.float32, 1)[0], x.astype(np.float32))


def test_every_bfloat16_becomes_the_same_float() -> None:
    x = np.arange(65536, dtype=np.uint16)
    expected = (x.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(run_cast("bfloat16_to_float", x, np.float32, 1)[0], expected)


def test_float_to_half_to_nearest_over_all_magnitudes() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 300_000, dtype=np.uint32)
    halves = every_half().astype(np.float32).view(np.uint32)
    near = np.concatenate([halves, halves + 0x0FFF, halves + 0x1000, halves + 0x1001])  # halves and ties between them
    x = np.concatenate([bits, near]).view(np.float32)
    z = run_cast("float_to_half", x, np.float16, 7)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        expected = x.astype(np.float16)
    for mode in (0, 1):
        np.testing.assert_array_equal(z[mode], expected)
        np.testing.assert_array_equal(np.signbit(z[mode]), np.signbit(expected))


@pytest.mark.parametrize(
    ("entry", "modes", "digits", "least", "result"),
    [
        ("float_to_half", ALL_MODES, 11, -24, np.float16),
        ("float_to_bfloat16", ROUNDING, 8, -133, np.uint16),
        ("int32_to_float", ("NONE", *ROUNDING), 24, -149, np.float32),
        ("int64_to_float", ROUNDING, 24, -149, np.float32),
        ("int16_to_half", ("NONE", *ROUNDING), 11, -24, np.float16),
    ],
)
def test_to_a_float_type(entry: str, modes: tuple[str, ...], digits: int, least: int, result: type[Any]) -> None:
    x = floats(4000, 2)
    source = entry.split("_to_")[0]
    if source != "float":
        info = np.iinfo(source)
        x = np.random.default_rng(3).integers(info.min, info.max, 4000, endpoint=True).astype(source)
        x[::2] >>= np.iinfo(source).bits // 2
    z = run_cast(entry, x, result, len(modes))
    values = (z.astype(np.uint32) << 16).view(np.float32) if entry == "float_to_bfloat16" else z
    for row, mode in enumerate(modes):
        expected = [to_float(value, mode, digits, least) for value in x.tolist()]
        assert [Fraction(float(value)) for value in values[row]] == expected, mode


@pytest.mark.parametrize(
    ("entry", "modes", "source"),
    [
        ("float_to_int32", ROUNDING, np.float32),
        ("float_to_int16", ROUNDING, np.float32),
        ("float_to_int64", ROUNDING, np.float32),
        ("float_to_float", ROUNDING, np.float32),
        ("half_to_int32", ROUNDING, np.float16),
        ("half_to_int16", ROUNDING, np.float16),
        ("half_to_int8", ("NONE", *ROUNDING), np.float16),
        ("half_to_uint8", ("NONE", *ROUNDING), np.float16),
        ("bfloat16_to_int32", ROUNDING, np.uint16),
    ],
)
def test_to_whole_numbers(entry: str, modes: tuple[str, ...], source: type[Any]) -> None:
    name = entry.split("_to_")[1]
    x = floats(4000, 4).astype(np.float32)
    x[::5] = np.random.default_rng(6).integers(-600, 600, 800) / 2
    x = (x.view(np.uint32) >> 16).astype(np.uint16) if source is np.uint16 else x.astype(source)
    values = (x.astype(np.uint32) << 16).view(np.float32) if source is np.uint16 else x
    z = run_cast(entry, x, np.dtype("float32" if name == "float" else name), len(modes))
    low, high = (-(2**40), 2**40) if name == "float" else (np.iinfo(name).min, np.iinfo(name).max)
    for row, mode in enumerate(modes):
        wanted = "RINT" if mode == "NONE" else mode
        expected = [min(max(to_integer(Fraction(float(value)), wanted), low), high) for value in values]
        assert z[row].tolist() == expected, mode


def test_integers_saturate_and_nan_becomes_zero() -> None:
    x = np.array([3e9, -3e9, np.inf, -np.inf, np.nan], np.float32)
    z = run_cast("float_to_int32", x, np.int32, 5)
    assert z[0].tolist() == [2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0]


@pytest.mark.parametrize(
    ("entry", "source", "result"),
    [
        ("int16_to_float", np.int16, np.float32),
        ("int8_to_half", np.int8, np.float16),
        ("uint8_to_half", np.uint8, np.float16),
        ("int32_to_int64", np.int32, np.int64),
    ],
)
def test_exact_conversions(entry: str, source: type[Any], result: type[Any]) -> None:
    info = np.iinfo(source)
    x = np.random.default_rng(8).integers(info.min, info.max, 5000, endpoint=True).astype(source)
    np.testing.assert_array_equal(run_cast(entry, x, result, 1)[0], x.astype(result))


@pytest.mark.parametrize(
    ("entry", "source", "result"), [("int32_to_int16", np.int32, np.int16), ("int64_to_int32", np.int64, np.int32)]
)
def test_narrowing_saturates(entry: str, source: type[Any], result: type[Any]) -> None:
    info = np.iinfo(result)
    x = np.array([0, -1, info.max, info.min, info.max + 1, info.min - 1, np.iinfo(source).max], source)
    np.testing.assert_array_equal(run_cast(entry, x, result, 1)[0], np.clip(x, info.min, info.max))


def test_bfloat16_to_nearest_agrees_with_torch() -> None:
    bits = np.random.default_rng(9).integers(0, 2**32, 100_000, dtype=np.uint32)
    x = bits[(bits & 0x7F800000) != 0x7F800000].view(np.float32)
    expected = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(run_cast("float_to_bfloat16", x, np.uint16, 5)[0], expected)


def test_scalar_helpers() -> None:
    x = floats(64, 6)[8:16]
    z = np.zeros(8, np.float32)
    arguments: list[Any] = [("x", x, "in"), ("z", z, "out"), ("n", None, "in")]
    run_kernel(Kernel(SOURCE, entry="scalar_helpers"), arguments).require_clean()
    np.testing.assert_array_equal(z, torch.from_numpy(x).to(torch.bfloat16).float().numpy())
