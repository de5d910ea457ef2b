"""Libraries with a fault planted into them: the driver, its sanitizers and its judge find each."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from emulator.compile_cache import cached_folder
from tests.cases import Case
from tests.cpu.driver import DONE, OUT_OF_MEMORY, CaseFile, build_driver, run_driver, start_driver
from tests.cpu.driver_cases import DriverCase
from tests.cpu.native import ALL_LEVELS, OWN_LEVELS, SOURCE, operator_arguments, same_bits
from tests.helpers import make_inputs
from toptheta_npu._checks import ROW_PLACEMENTS

pytestmark = pytest.mark.sanitizers
_ADDRESS = "address,undefined"
#: Rows of no whole number of steps, whole tiles, several granules, and keys up to the end of the cache.
_CASE = Case("faults", heads=6, kv_heads=2, head_dim=42, lengths=(4208,), lengths_as="none", keep=0.2)
_COLUMNS = replace(_CASE, lengths=(4201,))


@dataclass(frozen=True)
class Fault:
    """A text of the library's sources that stands there once, and a wrong one in its place."""

    name: str
    file: str
    right: str
    wrong: str
    sanitizers: str
    report: str


_FAULTS = (
    Fault("writes-past-the-output", "elements.h", "sizeof(float) * count)", "sizeof(float) * (count + 1))", _ADDRESS,
          "heap-buffer-overflow"),
    Fault("reads-past-the-values", "rows.h", "head_dim_ % Element::kStep == 0;", "true;", _ADDRESS, "AddressSanitizer"),
    Fault("reads-past-a-page-of-columns", "columns.h", "done + kLanes <= room", "room > 0", _ADDRESS,
          "AddressSanitizer"),
    Fault("keeps-memory", "step.h", "scratch = Scratch::of_this_thread();", "scratch = *new Scratch();", _ADDRESS,
          "LeakSanitizer"),
    Fault("overflows", "plan.h", "(length + granule_rows_ - 1)", "(length + INT64_MAX)", _ADDRESS,
          "signed integer overflow"),
    Fault("combines-too-early", "step.h", "std::memory_order_acq_rel", "std::memory_order_relaxed", "thread",
          "data race"),
)  # fmt: skip

#: What sets the sums of a granule to 0.
_ZEROS = "std::fill_n(step_.sums_of(item.number, block), rows * step_.padded_dim, 0.0F);"


def sources_with(fault: Fault) -> Path:
    """The folder of a copy of the sources with the fault, kept."""
    text = (SOURCE / fault.file).read_text()
    assert text.count(fault.right) == 1, f"{fault.file} has changed: {fault.right}"

    def copy(folder: Path) -> None:
        shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
        (folder / fault.file).write_text(text.replace(fault.right, fault.wrong))

    return cached_folder(f"cpu-source-{fault.name}", [*sorted(SOURCE.iterdir()), fault.right, fault.wrong], copy)


def driver_case(columns: bool = False) -> DriverCase:
    return DriverCase.of(_COLUMNS if columns else _CASE, ("auto",), (), (1, 3), columns=columns)


@pytest.mark.parametrize("level", OWN_LEVELS[:1])
@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.name)
def test_sanitizers_find_a_planted_fault(fault: Fault, level: str, tmp_path: Path) -> None:
    driver = build_driver("float32", level, fault.sanitizers, source=sources_with(fault))
    driver_case(fault.file == "columns.h").file.write(tmp_path / "0.case")
    done = start_driver(driver, level, tmp_path)
    assert done.returncode != 0
    assert fault.report in done.stderr


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_page_behind_each_tensor_stops_a_read_past_its_end(level: str, tmp_path: Path) -> None:
    """Where there is no AddressSanitizer."""
    fault = next(fault for fault in _FAULTS if fault.name == "reads-past-the-values")
    driver = build_driver("float32", level, source=sources_with(fault))
    driver_case().file.write(tmp_path / "0.case")
    assert start_driver(driver, level, tmp_path).returncode in (-11, 139)  # SIGSEGV, also as the emulator says it


@pytest.mark.parametrize("level", OWN_LEVELS[:1])
def test_judge_finds_memory_that_is_read_before_it_is_written(level: str, tmp_path: Path) -> None:
    fault = Fault("sums-up-from-anything", "step.h", _ZEROS, "", _ADDRESS, "")
    driver = build_driver("float32", level, _ADDRESS, source=sources_with(fault))
    case = driver_case()
    (results,) = run_driver(driver, level, tmp_path, [case.file])
    with pytest.raises(AssertionError):
        case.judge(results)


@pytest.mark.parametrize("level", OWN_LEVELS[:1])
@pytest.mark.parametrize("placement", ROW_PLACEMENTS[1:])
@pytest.mark.parametrize("threads", [1, 3])
def test_no_memory_is_a_status_wherever_it_is_missing(level: str, placement: str, threads: int, tmp_path: Path) -> None:
    inputs = make_inputs(Case("memory", placement=placement, lengths=(4200, 30), head_dim=128, keep=0.05))
    arguments, operator = operator_arguments(inputs), "incremental_attention_with_stats"
    file = CaseFile({name: arguments[name] for name in ("query", "key", "value", "threshold", "actual_seq_lengths")})
    attempts = range(20)
    for attempt in (-1, *attempts):
        file.add(operator, arguments, threads=threads, failing_allocation=attempt)
    (first, *others) = run_driver(build_driver("float32", level, _ADDRESS), level, tmp_path, [file])[0]
    assert first.status == DONE
    statuses = [result.status for result in others]
    assert statuses[:7] == [OUT_OF_MEMORY] * 7
    assert statuses[-1] == DONE
    assert set(statuses) == {DONE, OUT_OF_MEMORY}
    assert all(same_bits(result.outputs, first.outputs) for result in others if result.status == DONE)
