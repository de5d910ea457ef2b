"""Every rule that an API call checks: the marked lines of the kernels have the finding, their neighbours have none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.ascendc import Finding, Kernel, KernelRun, run_kernel

KERNELS = Path(__file__).parent / "kernels"
MARKED = (
    "api_checks.cpp",
    "api_parameters.cpp",
    "api_transfers.cpp",
    "api_overlap.cpp",
    "api_queues.cpp",
    "api_cube_checks.cpp",
)
OPTIONS: dict[str, dict[str, Any]] = {"launch_sync_all": {"blocks": 3}, "launch_block": {"blocks": 3}}


@dataclass(frozen=True)
class Case:
    source: Path
    entry: str
    expected: frozenset[tuple[str, int]]  # (check, line)


def marked_cases(source: Path) -> list[Case]:
    cases: list[Case] = []
    for number, text in enumerate(source.read_text().splitlines(), start=1):
        if entry := re.match(r"void (\w+)\(GM_ADDR", text):
            cases.append(Case(source, entry[1], frozenset()))
        if marks := re.search(r"// finds ([\w ]+)$", text):
            case = cases.pop()
            found = {(check, number) for check in marks[1].split()}
            cases.append(Case(source, case.entry, case.expected | found))
    return cases


CASES = [case for name in MARKED for case in marked_cases(KERNELS / name)]
BY_NAME = {case.entry: case for case in CASES}


def run_case(case: Case, **options: Any) -> KernelRun:
    x = np.arange(1024, dtype=np.float32)
    z = np.zeros(1024, np.float32)
    return run_kernel(
        Kernel(case.source, entry=case.entry),
        [("x", x, "in"), ("z", z, "inout")],
        **{**OPTIONS.get(case.entry, {}), **options},
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.entry)
def test_the_marked_lines_are_found_and_nothing_else(case: Case) -> None:
    run = run_case(case)
    assert {(finding.check, finding.line) for finding in run.findings} == case.expected, run.summary()


def test_every_check_of_the_calls_has_a_kernel() -> None:
    found = {check for case in CASES for check, _ in case.expected}
    assert found >= {"Alignment", "LocalBounds", "Parameter", "Overlap", "Queue", "Leak", "UseAfterFree", "Unsupported"}


def finding_of(entry: str) -> Finding:
    (finding,) = run_case(BY_NAME[entry]).findings
    return finding


def test_findings_name_the_call_the_operand_and_the_remedy() -> None:
    finding = finding_of("aligned_source")
    assert finding.call == "Exp"
    assert "srcLocal" in finding.what
    finding = finding_of("overlap_later_repeat")
    assert "repeat 1 reads in srcLocal what an earlier repeat wrote to dstLocal" in finding.what
    assert "PipeBarrier<PIPE_V>" in finding.remedy
    finding = finding_of("mask_of_mixed_types")
    assert "128" in finding.what
    assert "1 to 64" in finding.remedy
    assert "DataCopyPad" in finding_of("copy_count").remedy


# ---- queues and the launch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry", "factor"), [("queue_round_trip", 2), ("queue_bound_to_both_sides", 1)])
def test_queues_carry_data(entry: str, factor: int) -> None:
    x, z = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    case = BY_NAME[entry]
    run_kernel(Kernel(case.source, entry=entry), [("x", x, "in"), ("z", z, "out")]).require_clean()
    np.testing.assert_array_equal(z, factor * x)


@pytest.mark.parametrize("call", ["in.queue.EnQue(a);", "out.EnQue<float>(d);"])
def test_a_queue_without_its_flag_is_found(call: str) -> None:
    case = BY_NAME["queue_round_trip"]
    (line,) = [number for number, text in enumerate(case.source.read_text().splitlines(), 1) if call in text]
    run = run_case(case, suppress=f"{case.source.name}:{line}")
    assert "ReadAfterWrite" in run.checks


def tiling_bytes() -> bytes:
    return np.int32(11).tobytes() + np.float32(2.5).tobytes() + np.arange(100, 120, dtype=np.int64).tobytes()


@pytest.mark.parametrize("key", [7, 8])
def test_tiling_data(key: int) -> None:
    z = np.zeros(4, np.float32)
    case = BY_NAME["launch_tiling"]
    arguments: list[Any] = [("tiling", tiling_bytes(), "in"), ("z", z, "out")]
    run_kernel(Kernel(case.source, entry=case.entry), arguments, tiling_key=key).require_clean()
    assert z.tolist() == [11, 2.5, 119, key == 7]


def test_blocks() -> None:
    z = np.zeros((3, 4), np.int32)
    case = BY_NAME["launch_block"]
    run_kernel(Kernel(case.source, entry=case.entry), [("x", None, "in"), ("z", z, "out")], blocks=3).require_clean()
    assert z.tolist() == [[block, 3, 2, 1] for block in range(3)]


def test_sync_all() -> None:
    z = np.zeros((3, 8), np.float32)
    case = BY_NAME["launch_sync_all"]
    run_kernel(Kernel(case.source, entry=case.entry), [("x", None, "in"), ("z", z, "out")], blocks=3).require_clean()
    assert z[:, 0].tolist() == [1, 2, 0]
