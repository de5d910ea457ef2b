"""Every check of the machine: a kernel that has the error, and a neighbour that does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.ascendc import Finding, Kernel, KernelRun, run_kernel

KERNELS = Path(__file__).parent / "kernels"
BYTES = 4096
OPTIONS: dict[str, dict[str, Any]] = {
    "sync_all_blocks": {"cores": 1},
    "sync_all_kernel_type_of_the_key": {"tiling_key": 3},
    "sync_all_kernel_type_clean": {"tiling_key": 3},
}


@dataclass(frozen=True)
class Case:
    source: Path
    entry: str
    expected: frozenset[tuple[str, int]]  # (check, line)


def marked_cases(source: Path) -> list[Case]:
    """The kernels of a file with the findings that their comments ask for."""
    cases: list[Case] = []
    for number, text in enumerate(source.read_text().splitlines(), start=1):
        if entry := re.match(r"void (\w+)\(uint8_t", text):
            cases.append(Case(source, entry[1], frozenset()))
        if marks := re.search(r"// finds ([\w ]+)$", text):
            case = cases.pop()
            cases.append(Case(source, case.entry, case.expected | {(check, number) for check in marks[1].split()}))
    return cases


CASES = [
    case
    for name in ("machine_checks.cpp", "machine_order.cpp", "machine_cores.cpp", "machine_mixed.cpp")
    for case in marked_cases(KERNELS / name)
]


def run_case(case: Case, **options: Any) -> KernelRun:
    x = np.arange(BYTES, dtype=np.uint8)
    y = np.zeros(BYTES, dtype=np.uint8)
    blocks = 2 if case.source.stem in ("machine_cores", "machine_mixed") else 1
    return run_kernel(
        Kernel(case.source, entry=case.entry),
        [("x", x, "in"), ("y", y, "out"), ("w", BYTES, "workspace")],
        **{"blocks": blocks, **OPTIONS.get(case.entry, {}), **options},
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.entry)
def test_the_marked_lines_are_found_and_nothing_else(case: Case) -> None:
    run = run_case(case)
    assert {(finding.check, finding.line) for finding in run.findings} == case.expected, run.summary()
    assert all(finding.file == str(case.source) for finding in run.findings)


@pytest.mark.parametrize("case", [case for case in CASES if case.expected], ids=lambda case: case.entry)
def test_one_host_thread_finds_the_same(case: Case) -> None:
    assert run_case(case, host_threads=1).findings == run_case(case, host_threads=4).findings


def test_every_check_of_the_machine_has_a_kernel() -> None:
    header = Path("ascendc/machine/findings.h")
    names = re.findall(r"^    k(\w+),", (KERNELS.parents[1] / header).read_text(), re.M)
    of_the_api = {"Leak", "Parameter", "Overlap", "Count"}
    of_other_tests = {"Exception"}
    assert set(names) - of_the_api - of_other_tests == {check for case in CASES for check, _ in case.expected}


def finding_of(entry: str, **options: Any) -> Finding:
    case = next(case for case in CASES if case.entry == entry)
    (finding,) = run_case(case, **options).findings
    return finding


def test_a_race_names_both_calls_the_address_and_the_remedy() -> None:
    finding = finding_of("read_after_write")
    assert finding.call == "Increment"
    assert "reads tile + 0 while CopyIn at machine_order.cpp:" in finding.what
    assert "HardEvent::MTE2_V" in finding.remedy
    assert finding.count == 8  # 32-byte blocks


def test_a_race_in_one_pipe_asks_for_a_barrier() -> None:
    assert "PipeBarrier<PIPE_MTE2>" in finding_of("write_after_write_in_one_pipe").remedy


def test_bounds_name_the_buffer_and_the_offset() -> None:
    assert "x + 3841" in finding_of("gm_bounds").what
    assert "tensor of 512 bytes at x + 0" in finding_of("gm_bounds_of_a_tensor").what
    assert "local tensor of 256 bytes at tile + 0" in finding_of("ub_bounds").what


def test_uninitialised_names_the_first_byte() -> None:
    assert "tile + 252" in finding_of("uninitialised").what
    assert "w + 128" in finding_of("gm_uninitialised").what


def test_a_finding_names_the_first_block_and_counts_all() -> None:
    finding = finding_of("stale_cache_before_the_dma_has_ended")
    assert (finding.block, finding.count) == (0, 2)


def test_auto_sync_orders_one_core() -> None:
    for entry in ("read_after_write_in_one_pipe", "scalar_read_after_vector", "stale_register"):
        case = next(case for case in CASES if case.entry == entry)
        assert run_case(case, auto_sync=True).findings == []
    assert finding_of("read_after_write", auto_sync=True).check == "ReadAfterWrite"


def test_without_checks_bounds_are_still_found_but_no_races() -> None:
    found = {case.entry: run_case(case, checks=False).checks for case in CASES}
    fatal = {"LocalCapacity", "LocalBounds", "GmBounds", "WaitWithoutSet", "SyncAllCount", "Unsupported"}
    unchecked = {"ReadAfterWrite", "WriteAfterWrite", "WriteAfterRead", "Uninitialised", "CrossCore"}
    for case in CASES:
        expected = {check for check, _ in case.expected}
        assert expected & fatal <= set(found[case.entry])
        assert not unchecked & set(found[case.entry])
