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
    pytest.param(variable, *entry, id=f"{entry[1]}.{entry[2]}")
    for variable, known in RECORDS.items()
    for entry in functions(known, "parameters")
]


@pytest.mark.parametrize(("variable", "module", "name", "function", "wanted"), PARAMETERS)
def test_recorded_parameters_are_those_of_the_sources(
    variable: str, module: str, name: str, function: str, wanted: list[str]
) -> None:
    assert_parameters(checkout(variable), module, name, function, wanted)


@pytest.mark.parametrize("variable", RECORDS)
def test_recorded_fields_and_attributes_are_in_the_sources(variable: str) -> None:
    known: dict[str, Any] = RECORDS[variable]
    assert_fields(checkout(variable), known)
    assert_attributes(checkout(variable), known)
