"""What a core pays for its tiling data, by the way in which it reads them, against times worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emulator.ascendc import Kernel, KernelRun, run_kernel
from emulator.tests.test_timeline import ROUND

SOURCE = Path(__file__).parent / "kernels" / "tiling_reads.cpp"


def run(entry: str) -> tuple[KernelRun, int]:
    """A run with 16 numbers, 0 to 15, as tiling data, and the number that the kernel stored."""
    stored = np.zeros(16, np.int64)
    arguments = [("tiling", np.arange(16, dtype=np.int64), "in"), ("z", stored, "inout")]
    return run_kernel(Kernel(SOURCE, entry=entry), arguments), int(stored[0])


@pytest.mark.parametrize(
    ("entry", "cycles"),
    [
        # a DMA of 128 bytes at 16 each cycle, its command and its latency, 16 reads of the Unified Buffer
        ("tiling_get", 8 + 20 + 100 + 16 * 10),
        # two lines of 64 bytes: one miss and seven hits each
        ("tiling_get_on_a_cube_core", 2 * (300 + 7 * 10)),
        ("tiling_copy", 2 * (300 + 7 * 10)),
        # both lines are on their way at once
        ("tiling_copy_preloaded", 1 + 300 + 16 * 10),
        # a line that is there, or on its way, is not fetched again
        ("tiling_copy_preloaded_twice", 1 + 300 + 16 * 10),
    ],
)
def test_time_of_128_bytes(entry: str, cycles: float) -> None:
    result, _ = run(entry)
    assert result.require_clean().timeline("cold", **ROUND).cycles == pytest.approx(cycles)


def test_preloaded_data_are_the_data() -> None:
    result, stored = run("tiling_value")
    result.require_clean()
    assert stored == 15


def test_preload_stays_inside_its_argument() -> None:
    assert run("tiling_preload_beyond_the_end")[0].checks == ["GmBounds"]


def test_preloaded_line_keeps_what_memory_held() -> None:
    assert run("preloaded_line_is_stale")[0].checks == ["StaleCache"]
