"""The stand-ins for CANN's host side: compiling, calling, and the rules of the generated C functions."""

from __future__ import annotations

import ctypes
import doctest
import shutil
from pathlib import Path
from typing import Any

import pytest

from emulator import cann
from emulator.cann.signature import signature_of
from emulator.compile_cache import REPOSITORY

_HALF = "float16"
_INPUTS = {
    "query": cann.TensorSpec((2, 4, 1, 32), _HALF), "key": cann.TensorSpec((2, 2, 64, 32), _HALF),
    "value": cann.TensorSpec((2, 2, 64, 32), _HALF), "threshold": cann.TensorSpec((4,), "float32"),
}  # fmt: skip
_ATTRS: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.125}


def test_example_of_the_package() -> None:
    assert doctest.testmod(cann).failed == 0


def test_optional_inputs_are_found_by_their_place_in_the_definition() -> None:
    """An input that is left out moves no other one: each alone reaches the tiling function as itself."""
    alone = {
        "actual_seq_lengths": cann.TensorSpec((2,), "int32"),
        "key_start": cann.TensorSpec((2,), "int64"),
        "value_mean": cann.TensorSpec((2, 2, 32), "float32"),
    }
    names = [item["name"] for item in cann.describe_operator()["inputs"]]
    for name, spec in alone.items():
        given = cann.tiling_fields(cann.run_tiling(_INPUTS | {name: spec}, _ATTRS).tiling)["givenInputs"]
        assert {names[bit] for bit in range(16) if given >> bit & 1} == {*_INPUTS, name}


def test_an_input_of_none_is_left_out() -> None:
    given = cann.run_tiling(_INPUTS | {"value_mean": None, "block_table": None}, _ATTRS)
    assert given == cann.run_tiling(_INPUTS, _ATTRS)


def test_defaults_are_those_of_the_definition() -> None:
    defaults = {item["name"]: item["default"] for item in cann.describe_operator()["attributes"]}
    spelled_out = {name: value for name, value in defaults.items() if value is not None} | _ATTRS
    assert cann.run_tiling(_INPUTS, spelled_out) == cann.run_tiling(_INPUTS, _ATTRS)


def test_results_of_two_calls_are_independent() -> None:
    first = cann.run_tiling(_INPUTS, _ATTRS)
    cann.run_tiling(_INPUTS, _ATTRS | {"scale_value": 0.5})
    with pytest.raises(cann.OperatorError, match="num_heads"):
        cann.run_tiling(_INPUTS, _ATTRS | {"num_heads": 3})
    assert cann.run_tiling(_INPUTS, _ATTRS) == first


def test_a_description_is_the_callers_own() -> None:
    before = len(cann.describe_operator()["inputs"])
    cann.describe_operator()["inputs"].clear()
    assert len(cann.describe_operator()["inputs"]) == before > 0


@pytest.mark.parametrize(
    ("inputs", "attrs", "message"),
    [
        ({"querry": None}, {}, "querry: expected an input or output of the operator (query, key, "),
        ({}, {"scale": 1.0}, "scale: expected an attribute of the operator (num_heads, "),
        ({}, {"num_heads": "4"}, "num_heads: expected a value of type int, got '4'"),
        ({}, {"scale_value": "1"}, "scale_value: expected a value of type float, got '1'"),
        ({}, {"sdc": None}, "sdc: expected a value of type string, got None"),
        ({}, {"key_strides": 16}, "key_strides: expected a value of type list_int, got 16"),
        ({"query": cann.TensorSpec((1,) * 9, _HALF)}, {}, "query: expected at most 8 dimensions and one of float32, "),
        ({"query": cann.TensorSpec((2, 4, 1, 32), "half")}, {}, "query: expected at most 8 dimensions and one of "),
    ],
    ids=["input", "attribute", "int", "float", "string", "list", "rank", "dtype"],
)
def test_wrong_use(inputs: dict[str, Any], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        cann.run_tiling(_INPUTS | inputs, _ATTRS | attrs)
    assert str(caught.value).startswith(message)


def test_tiling_struct_has_the_size_of_the_compiled_one() -> None:
    tiling = cann.run_tiling(_INPUTS, _ATTRS).tiling
    assert len(tiling) == ctypes.sizeof(cann.tiling_struct())
    with pytest.raises(ValueError, match=f"^tiling: expected {len(tiling)} bytes, got 3$"):
        cann.tiling_fields(b"abc")


def test_signature_rules() -> None:
    """On a definition that has every kind of parameter; expectations as in the generator's own tests."""
    operator = {
        "type": "AddTwoThings",
        "inputs": [{"name": "first_one", "option": "required"}, {"name": "x2", "option": "optional"}],
        "attributes": [
            {"name": f"{option[0]}_{kind}", "option": option, "type": kind}
            for option in ("required", "optional")
            for kind in ("int", "float", "bool", "string", "list_int")
        ],
        "outputs": [{"name": "sum_of_both"}],
    }
    signature = signature_of(operator)
    assert signature["header"] == "aclnn_add_two_things.h"
    assert [f"{item['type']} {item['name']}" for item in signature["get_workspace_size"]["parameters"]] == [
        "const aclTensor * firstOne", "const aclTensor * x2Optional", "int64_t rInt", "double rFloat", "bool rBool",
        "char * rString", "const aclIntArray * rListInt", "int64_t oInt", "double oFloat", "bool oBool",
        "char * oStringOptional", "const aclIntArray * oListIntOptional", "const aclTensor * out",
        "uint64_t * workspaceSize", "aclOpExecutor ** executor",
    ]  # fmt: skip


def _write(folder: Path, source: str, header: str = "constexpr int kAnswer = 42;") -> Path:
    (folder / "answer.h").write_text(header)
    path = folder / "answer.cpp"
    path.write_text(source)
    return path


_SOURCE = '#include "answer.h"\nextern "C" int Answer() { return kAnswer; }\n'


def test_a_library_is_built_once_per_state_of_its_headers(tmp_path: Path) -> None:
    source = _write(tmp_path, _SOURCE)
    first = cann.build_library("answer", [source], [tmp_path])
    built = first.stat().st_mtime_ns
    assert cann.build_library("answer", [source], [tmp_path]) == first
    assert first.stat().st_mtime_ns == built
    other = cann.build_library("answer", [_write(tmp_path, _SOURCE, "constexpr int kAnswer = 7;")], [tmp_path])
    assert (ctypes.CDLL(str(first)).Answer(), ctypes.CDLL(str(other)).Answer()) == (42, 7)
    for library in (first, other):
        shutil.rmtree(library.parent)


def test_compile_errors_and_warnings_are_shown(tmp_path: Path) -> None:
    for source, text in (("int f( { }", "expected"), ("static int unused() { return 1; }", "unused")):
        with pytest.raises(cann.CompileError, match=rf"(?s)g\+\+ -std=c\+\+17.*answer\.cpp.*{text}"):
            cann.build_library("answer", [_write(tmp_path, source)], [tmp_path])


def test_missing_compiler(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^compiler: expected an installed C\+\+ compiler, got 'gxx'; "):
        cann.build_library("answer", [_write(tmp_path, _SOURCE)], [tmp_path], compiler="gxx")


def test_c_functions_are_exported_for_other_libraries() -> None:
    library = ctypes.CDLL(str(cann.operator_library()))
    header = (REPOSITORY / "emulator" / "cann" / "host.h").read_text()
    for name in ("CannDescribeOperator", "CannInferOutputs", "CannRunTiling", "CannErrorMessage"):
        assert f" {name}(" in header or f"*{name}(" in header or f"{name}()" in header
        assert getattr(library, name)
