"""Modelled cycles of vector instructions: the vendor's table of rates, bank conflicts, and the speed of the model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.ascendc import Kernel, Mode, run_kernel

KERNELS = Path(__file__).parent / "kernels"
HEAD = 22

# entry, repeats, elements of a repeat, elements per cycle (A2/A3 column of the vendor's table)
RATES = [
    ("add_float", 64, 64, 64),
    ("add_float_tail", 65, 64, 64),
    ("add_half", 32, 128, 128),
    ("add_few_lanes", 64, 64, 64),
    ("add_scalar", 64, 64, 64),
    ("exp_float", 64, 64, 32),
    ("exp_half", 32, 128, 32),
    ("div_float", 64, 64, 32),
    ("muladd_half", 32, 128, 64),
    ("muladd_float", 64, 64, 32),
    ("muladd_mixed", 64, 64, 32),
    ("axpy_mixed", 64, 64, 64),
    ("compare_float", 64, 64, 64),
    ("compare_half", 32, 128, 128),
    ("gather_mask_float", 64, 64, 32),
    ("cast_half_float", 64, 64, 64),
    ("cast_float_int64", 64, 32, 32),
    ("block_reduce_float", 64, 64, 64),
    ("block_reduce_half", 32, 128, 128 / 7),
    ("pair_reduce_float", 64, 64, 64),
    ("whole_reduce_float", 64, 64, 64 / 7),
    ("duplicate_float", 64, 64, 64),
    ("brcb_float", 64, 64, 64),
    ("copy_inside", 64, 64, 64),
]


def vector_cycles(entry: str, *, bank_conflicts: bool = False) -> float:
    run = run_kernel(Kernel(KERNELS / "api_costs.cpp", entry=entry), []).require_clean(allow=["Uninitialised"])
    return run.timeline("hot", bank_conflicts=bank_conflicts).busy_cycles("V")


@pytest.mark.parametrize(("entry", "repeats", "elements", "per_cycle"), RATES, ids=[rate[0] for rate in RATES])
def test_cycles_of_an_instruction(entry: str, repeats: int, elements: int, per_cycle: float) -> None:
    assert vector_cycles(entry) == pytest.approx(HEAD + repeats * elements / per_cycle, rel=1e-6)


def test_gather_is_slow() -> None:
    duplicate = HEAD + 64
    assert vector_cycles("gather_float") - duplicate == pytest.approx(HEAD + 4096 / 5)


def test_select_also_sets_up_its_mask() -> None:
    assert vector_cycles("select_float") == pytest.approx(3 * HEAD + 2 + 64)


@pytest.mark.parametrize(
    ("entry", "extra"),
    [
        ("no_conflict_read_once", 0),
        ("no_conflict_in_place", 0),
        ("conflict_blocks_8", 3 * 16),
        ("conflict_blocks_16", 7 * 16),
        ("conflict_three_banks_of_a_group", 8),
        ("conflict_row_layout", 16),
    ],
)
def test_bank_conflicts_are_in_the_pessimistic_time_only(entry: str, extra: float) -> None:
    plain = vector_cycles(entry)
    assert vector_cycles(entry, bank_conflicts=True) - plain == pytest.approx(extra)


@pytest.mark.parametrize(("case", "profiled", "within"), [
    (1, 2390, 0.05),
    (2, 4167, 0.05),  # two reads in a bank
    (3, 4167, 0.05),  # two reads in a group
    (4, 2389, 0.05),  # a read and a write in a bank, block by block: the write comes later
    (5, 3751, 0.15),  # a read and a write in a bank
    (6, 2390, 0.05),  # in place
    (7, 3584, 0.15),  # two reads in a group, every other repeat
    (8, 2389, 0.05),
])  # fmt: skip
def test_bank_conflicts_cost_what_the_vendor_has_profiled(case: int, profiled: int, within: float) -> None:
    """64 repeats of Add, a thousand times, in ticks of 20 ns; the first case takes 47.8 ns."""
    cycles = vector_cycles(f"vendor_{case}", bank_conflicts=True)
    assert cycles / 1.85 == pytest.approx(profiled * 0.02, rel=within)


def copy_cycles(entry: str, mode: Mode = "cold", **cost: float) -> float:
    x = np.zeros(1 << 16, np.float16)
    run = run_kernel(Kernel(KERNELS / "api_costs.cpp", entry=entry), [("x", x, "in")]).require_clean()
    return run.timeline(mode, dma_command=0, **cost).busy_cycles("MTE2")


@pytest.mark.parametrize(
    ("entry", "rows", "rest_of_line"),
    [
        ("pair_of_rows", 2, 256),
        ("rows_together", 0, 0),
        ("single_row", 1, 256),
        ("rows_of_a_line", 0, 0),
        ("rows_by_blocks", 3, 384),
        ("plain_count", 0, 0),
    ],
)
def test_narrow_rows_that_lie_apart_are_counted(entry: str, rows: int, rest_of_line: int) -> None:
    plain = copy_cycles(entry, scattered_row_bytes=0)
    for each in (66, 512):
        more = copy_cycles(entry, scattered_row_bytes=each) - plain
        assert more == pytest.approx(rows * min(each, rest_of_line) / 16.8)
    assert copy_cycles(entry, "hot", scattered_row_bytes=512) == copy_cycles(entry, "hot", scattered_row_bytes=0)


def test_narrow_rows_past_the_l2_take_what_the_vendor_reports() -> None:
    # 48 cores read 302 MB in rows of 128 bytes, each 1024 bytes behind the last, in 307.38 us
    reported = 307.38e3 * 1.85 / (301989888 / 48 / 128)
    assert copy_cycles("rows_past_the_l2") / 128 == pytest.approx(reported, rel=0.01)
    assert copy_cycles("rows_past_the_l2", "hot") == copy_cycles("rows_past_the_l2")


def test_12_million_multiply_adds_take_well_under_two_seconds() -> None:
    x, y = np.ones((2, 1 << 14), np.float16)
    z = np.zeros(64, np.float32)
    kernel = Kernel(KERNELS / "api_speed.cpp", entry="multiply_adds")
    arguments: list[Any] = [("x", x, "in"), ("y", y, "in"), ("z", z, "out")]
    run_kernel(kernel, arguments)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        run_kernel(kernel, arguments).require_clean()
        seconds.append(time.perf_counter() - begin)
    assert (z == 6 * 128).all()
    assert min(seconds) < 1.5
