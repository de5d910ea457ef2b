"""The stand-ins for CANN's host side: compiling, calling, and the rules of the generated C functions."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from emulator import cann
from emulator.cann.signature import signature_of
from emulator.examples.axpy.__main__ import OPERATOR

_HOST_HEADER = Path(cann.__file__).with_name("host.h")


def test_an_operator_describes_itself() -> None:
    definition = OPERATOR.describe()
    assert definition["type"] == "Axpy"
    assert [item["name"] for item in definition["inputs"]] == ["x", "y"]
    assert definition["attributes"] == [{"name": "alpha", "option": "optional", "type": "float", "default": 1.0}]


def test_shape_inference_and_tiling_are_the_operators_own() -> None:
    spec = cann.TensorSpec((8 * 1024,), "float32")
    assert OPERATOR.infer_shape({"x": spec, "y": spec}, {}) == {"z": spec}
    tiling = OPERATOR.run_tiling({"x": spec, "y": spec}, {}, cann.Platform(vector_cores=4))
    assert (tiling.block_dim, tiling.tiling) == (4, b"\2\0\0\0\0\0\x80\x3f")
    with pytest.raises(cann.OperatorError, match="x: expected a multiple of 49152 elements, got 8192"):
        OPERATOR.run_tiling({"x": spec, "y": spec}, {})
    with pytest.raises(cann.OperatorError, match="y: expected a tensor, got None"):
        OPERATOR.run_tiling({"x": spec}, {})


def test_a_folder_without_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="sources: expected a folder with C"):
        cann.Operator(tmp_path).library()


def test_a_kernel_is_built_for_each_combination_of_required_inputs() -> None:
    definition = {
        "type": "Scale",
        "inputs": [
            {"name": "x", "option": "required", "types": ["float16", "float16", "float32"]},
            {"name": "lengths", "option": "optional", "types": ["int32", "int64", "int32"]},
        ],
        "outputs": [{"name": "y", "types": ["float16", "float16", "float32"]}],
    }
    assert cann.kernel_combinations(definition) == [{"x": "float16"}, {"x": "float32"}]
    assert cann.kernel_defines(definition, {"x": "float16"}) == {"DTYPE_X": "half", "DTYPE_Y": "half"}
    assert cann.kernel_defines(definition, {"x": "float32"})["DTYPE_LENGTHS"] == "int32_t"
    with pytest.raises(ValueError, match="dtypes: expected a combination that Scale has, got"):
        cann.kernel_defines(definition, {"x": "int8"})


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
    library = ctypes.CDLL(str(OPERATOR.library()))
    header = _HOST_HEADER.read_text()
    for name in ("CannDescribeOperator", "CannInferOutputs", "CannRunTiling", "CannErrorMessage"):
        assert f" {name}(" in header or f"*{name}(" in header or f"{name}()" in header
        assert getattr(library, name)
