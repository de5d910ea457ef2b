"""Shape inference and tiling of the operator as Python calls them: by names, with the definition's defaults."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from emulator import cann
from toptheta_host_model import OPERATOR, tiling_fields, tiling_struct

_HALF = "float16"
_INPUTS = {
    "query": cann.TensorSpec((2, 4, 1, 32), _HALF), "key": cann.TensorSpec((2, 2, 64, 32), _HALF),
    "value": cann.TensorSpec((2, 2, 64, 32), _HALF), "threshold": cann.TensorSpec((4,), "float32"),
}  # fmt: skip
_ATTRS: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.125}


def test_optional_inputs_are_found_by_their_place_in_the_definition() -> None:
    """An input that is left out moves no other one: each alone reaches the tiling function as itself."""
    alone = {
        "actual_seq_lengths": cann.TensorSpec((2,), "int32"),
        "key_start": cann.TensorSpec((2,), "int64"),
        "value_mean": cann.TensorSpec((2, 2, 32), "float32"),
    }
    names = [item["name"] for item in OPERATOR.describe()["inputs"]]
    for name, spec in alone.items():
        given = tiling_fields(OPERATOR.run_tiling(_INPUTS | {name: spec}, _ATTRS).tiling)["givenInputs"]
        assert {names[bit] for bit in range(16) if given >> bit & 1} == {*_INPUTS, name}


def test_defaults_are_those_of_the_definition() -> None:
    defaults = {item["name"]: item["default"] for item in OPERATOR.describe()["attributes"]}
    spelled_out = {name: value for name, value in defaults.items() if value is not None} | _ATTRS
    assert OPERATOR.run_tiling(_INPUTS, spelled_out) == OPERATOR.run_tiling(_INPUTS, _ATTRS)


def test_dtypes_of_outputs_do_not_depend_on_what_is_asked_for() -> None:
    declared = {item["name"]: item["types"][0] for item in OPERATOR.describe()["outputs"]}
    for asked in ({}, {"with_stats": True}, {"partial": True}):
        outputs = OPERATOR.infer_shape(_INPUTS, _ATTRS | asked)
        assert {name: spec.dtype for name, spec in outputs.items()} == declared
    wide = {name: cann.TensorSpec(spec.shape, "bfloat16") for name, spec in _INPUTS.items() if name != "threshold"}
    assert OPERATOR.infer_shape(_INPUTS | wide, _ATTRS)["attention_out"].dtype == "bfloat16"


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
        OPERATOR.run_tiling(_INPUTS | inputs, _ATTRS | attrs)
    assert str(caught.value).startswith(message)


def test_tiling_struct_has_the_size_of_the_compiled_one() -> None:
    tiling = OPERATOR.run_tiling(_INPUTS, _ATTRS).tiling
    assert len(tiling) == ctypes.sizeof(tiling_struct())
    with pytest.raises(ValueError, match=f"^tiling: expected {len(tiling)} bytes, got 3$"):
        tiling_fields(b"abc")
