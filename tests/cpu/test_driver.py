"""Every case of the table in C++ alone: on every instruction set, and under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cpu.driver_cases import assert_driver_equals_the_oracle, driver_cases
from tests.cpu.native import ELEMENTS, EMULATED_LEVELS, OWN_LEVELS


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
