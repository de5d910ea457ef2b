"""The exponential of the native CPU backend against that of double precision."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.cpu.native import ALL_LEVELS, compiled, launcher

_PROBE = Path(__file__).with_name("probes") / "exponential.cpp"
_LOWEST = np.float32(-87.33)  # where a result of float32 is about to become subnormal
# of all floats from -87.33 to 0 those that are more than one unit off
_WORST = np.array([0xC0A65534, 0xC1824F11, 0xC1DB0878, 0xC26FAD0A, 0xC26FB001], np.uint32).view(np.float32)

Floats = npt.NDArray[np.float32]


def exponentials(level: str, numbers: Floats) -> Floats:
    """What the library makes of the numbers."""
    padded = np.zeros(-(-len(numbers) // 16) * 16, np.float32)
    padded[: len(numbers)] = numbers
    probe = compiled("exponential", level, ("-O3",), (_PROBE,))
    done = subprocess.run([*launcher(level), str(probe)], input=padded.tobytes(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32)[: len(numbers)]


def sample() -> Floats:
    """Floats from -100 to 0: every 499th of them, all around the borders between powers of two, and the worst."""
    spread = np.arange(0x80000000, 0xC2C80000, 499, np.uint32).view(np.float32)
    borders = -(np.arange(0, 290) / 2 * np.log(2)).astype(np.float32)
    around = (borders.view(np.uint32)[:, None] + np.arange(-300, 300)).astype(np.uint32).view(np.float32).ravel()
    edge = (_LOWEST.view(np.uint32) + np.arange(-3000, 3000)).astype(np.uint32).view(np.float32)
    numbers = np.concatenate([spread, around, edge, _WORST, [np.float32(-0.0), np.float32(0.0), _LOWEST]])
    return numbers[(numbers <= 0) & (numbers >= -100)].astype(np.float32)


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_exponential_is_off_by_hardly_more_than_one_unit_in_the_last_place(level: str) -> None:
    numbers = sample()
    assert len(numbers) > 2_000_000
    found, exact = exponentials(level, numbers), np.exp(numbers.astype(np.float64))
    unit = np.exp2(np.floor(np.log2(exact)) - 23)
    off = np.abs(found - exact) / unit
    normal = numbers >= _LOWEST
    assert off[normal].max() <= 1.01
    assert set(numbers[normal & (off > 1)]) == set(_WORST)
    assert (off[normal] > 0.5).mean() < 0.02
    assert not found[~normal].any()


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_exponential_of_special_numbers(level: str) -> None:
    infinity = np.inf
    numbers = np.array([0.0, -0.0, -1e-45, -infinity, -3.4e38, -103, -87.34, np.nan, -np.nan], np.float32)
    found = exponentials(level, numbers)
    assert found[:7].tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert np.isnan(found[7:]).all()
    assert not np.signbit(found[:7]).any()
