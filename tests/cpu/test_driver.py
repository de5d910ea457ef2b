"""Every case of the table in C++ alone: on every instruction set, and under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import Case
from tests.cpu.driver import DONE, OUT_OF_MEMORY, CaseFile, build_driver, run_driver
from tests.cpu.driver_cases import assert_driver_equals_the_oracle, driver_cases
from tests.cpu.native import ELEMENTS, EMULATED_LEVELS, OWN_LEVELS, operator_arguments, same_bits
from tests.helpers import make_inputs
from toptheta_npu._checks import ROW_PLACEMENTS


@pytest.mark.sanitizers
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
@pytest.mark.parametrize("level", OWN_LEVELS)
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_sanitizers_have_nothing_to_report(dtype: str, level: str, sanitizers: str, tmp_path: Path) -> None:
    assert_driver_equals_the_oracle(driver_cases(dtype), level, sanitizers, tmp_path)


@pytest.mark.parametrize("level", EMULATED_LEVELS)
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_emulated_instruction_set_equals_the_oracle(dtype: str, level: str, tmp_path: Path) -> None:
    assert_driver_equals_the_oracle(driver_cases(dtype), level, "", tmp_path)


@pytest.mark.sanitizers
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
    (first, *others) = run_driver(build_driver("float32", level, "address,undefined"), level, tmp_path, [file])[0]
    assert first.status == DONE
    statuses = [result.status for result in others]
    assert statuses[:7] == [OUT_OF_MEMORY] * 7
    assert statuses[-1] == DONE
    assert set(statuses) == {DONE, OUT_OF_MEMORY}
    assert all(same_bits(result.outputs, first.outputs) for result in others if result.status == DONE)
