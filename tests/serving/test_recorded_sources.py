"""Each record of what a shim relies on, against the sources of its engine where a checkout is at hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.sources import (
    ASCEND_SOURCE,
    CPU_SOURCE,
    assert_attributes,
    assert_fields,
    assert_parameters,
    checkout,
    functions,
)
from toptheta_npu.vllm.ascend_signatures import record
from toptheta_npu.vllm.versions import cpu_record

RECORDS = {ASCEND_SOURCE: record(), CPU_SOURCE: cpu_record()}
PARAMETERS = [
    pytest.param(option, *entry, id=f"{entry[1]}.{entry[2]}")
    for option, known in RECORDS.items()
    for entry in functions(known, "parameters")
]


@pytest.mark.parametrize(("option", "module", "name", "function", "wanted"), PARAMETERS)
def test_recorded_parameters_are_those_of_the_sources(
    pytestconfig: pytest.Config, option: str, module: str, name: str, function: str, wanted: list[str]
) -> None:
    assert_parameters(checkout(pytestconfig, option), module, name, function, wanted)


@pytest.mark.parametrize("option", RECORDS)
def test_recorded_fields_and_attributes_are_in_the_sources(pytestconfig: pytest.Config, option: str) -> None:
    known: dict[str, Any] = RECORDS[option]
    source = checkout(pytestconfig, option)
    assert_fields(source, known)
    assert_attributes(source, known)
