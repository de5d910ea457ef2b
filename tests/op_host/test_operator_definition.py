"""The registered definition against the contract: names, order, dtypes; against the kernel's entry and the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import toptheta_npu  # noqa: F401 (registers the schema)
from toptheta_host_model import OPERATOR
from toptheta_npu.fallback.arguments import TABLE
from toptheta_npu.npu.interface import INPUTS, PARAMETERS

_ROOT = Path(__file__).resolve().parents[2]
_KERNEL = _ROOT / "op_kernel" / "top_theta_incremental_attention.cpp"
#: Dtypes of query, key and value, each with both dtypes of lengths: both caches of the query's, int8 K, int8.
_COLUMNS = [(query, *caches) for query in ("float16", "bfloat16")
            for caches in ((query, query), ("int8", query), ("int8", "int8"))]  # fmt: skip
_QUERY, _KEY, _VALUE = ([dtype for dtype in column for _ in range(2)] for column in zip(*_COLUMNS, strict=True))
_INTEGERS = ["int32", "int64"] * 6
_FLOAT32 = ["float32"] * 12
_INT32 = ["int32"] * 12
_CACHES = {"key": _KEY, "value": _VALUE}
#: Types of another input by the dtypes that the table of arguments allows; the NPU takes no float32 queries.
_TYPES = {(torch.int32, torch.int64): _INTEGERS, (torch.float32,): _FLOAT32, (torch.int32,): _INT32}
_SCALES = ("key_antiquant_scale", "value_antiquant_scale")
#: Attributes of the kernel alone, behind those of the table.
_OWN_ATTRIBUTES: list[tuple[str, str, str, Any]] = [
    ("key_strides", "optional", "list_int", []), ("value_strides", "optional", "list_int", []),
    ("key_scale_strides", "optional", "list_int", []), ("value_scale_strides", "optional", "list_int", []),
    ("with_stats", "optional", "bool", False), ("partial", "optional", "bool", False),
]  # fmt: skip
_KINDS = {int: "int", float: "float", str: "string"}
_OUTPUTS = [
    ("attention_out", "required", _QUERY), ("lse", "required", _FLOAT32), ("kept", "required", _INT32),
    ("value_rows", "required", _INT32), ("part_out", "required", _FLOAT32), ("part_maximum", "required", _FLOAT32),
    ("part_kept_mass", "required", _FLOAT32), ("part_discarded_mass", "required", _FLOAT32),
]  # fmt: skip


def _names(kind: str) -> list[str]:
    return [item["name"] for item in OPERATOR.describe()[kind]]


def test_type_and_socs() -> None:
    operator = OPERATOR.describe()
    assert operator["type"] == "TopThetaIncrementalAttention"
    assert operator["socs"] == ["ascend910b", "ascend910_93"]


def test_inputs() -> None:
    inputs = OPERATOR.describe()["inputs"]
    assert [(item["name"], item["option"], item["types"]) for item in inputs] == [
        (name, "required" if TABLE[argument].required else "optional", _types(argument))
        for name, argument in INPUTS.items()
    ]


def _types(argument: str) -> list[str]:
    if argument in _SCALES:
        return _FLOAT32
    known = {"query": _QUERY, **_CACHES}
    return known[argument] if argument in known else _TYPES[TABLE[argument].about.dtypes]


def test_attributes() -> None:
    attributes = OPERATOR.describe()["attributes"]
    assert [(item["name"], item["option"], item["type"], item["default"]) for item in attributes] == [
        *(
            (argument.name, "required" if argument.required else "optional", _KINDS[argument.type], argument.default)
            for argument in TABLE.values()
            if argument.type in _KINDS
        ),
        *_OWN_ATTRIBUTES,
    ]


def test_outputs() -> None:
    outputs = OPERATOR.describe()["outputs"]
    assert [(item["name"], item["option"], item["types"]) for item in outputs] == _OUTPUTS


def test_only_caches_and_their_scales_may_be_strided() -> None:
    """Anything else strided is copied first, which a cache must never be."""
    contiguous = {item["name"]: item["contiguous"] for item in OPERATOR.describe()["inputs"]}
    assert contiguous == {name: "ignore" if name in (*_CACHES, *_SCALES) else "auto" for name in INPUTS}


def test_nothing_depends_on_values() -> None:
    """Neither by declaration nor by code: a captured launch replays with other lengths."""
    operator = OPERATOR.describe()
    assert {item["value_depend"] for item in (*operator["inputs"], *operator["outputs"])} == {"ignore"}
    for source in sorted((_ROOT / "op_host").glob("*.*")):
        assert not re.search(r"Get\w*InputTensor|TilingInputsDataDependency", source.read_text()), source.name


def test_formats_are_nd() -> None:
    operator = OPERATOR.describe()
    assert all(item["formats"] == ["ND"] * 12 for item in (*operator["inputs"], *operator["outputs"]))


def test_kernel_entry_takes_the_same_arguments_in_the_same_order() -> None:
    entry = re.search(r"void top_theta_incremental_attention\(([^)]*)\)", _KERNEL.read_text())
    assert entry is not None
    arguments = re.findall(r"GM_ADDR (\w+)", entry[1])
    assert arguments == [*_names("inputs"), *_names("outputs"), "workspace", "tiling"]


def _schema(operator: str) -> dict[str, Any]:
    """The arguments by name."""
    schema = getattr(torch.ops.toptheta_npu, operator).default._schema
    return {argument.name: argument for argument in schema.arguments}


def test_inputs_are_the_tensors_of_the_python_operator() -> None:
    tensors = [name for name, argument in _schema("incremental_attention").items()
               if "Tensor" in str(argument.type)]  # fmt: skip
    assert _names("inputs") == [*tensors, "row_lse"]
    partial = [name for name, argument in _schema("incremental_attention_partial").items()
               if "Tensor" in str(argument.type)]  # fmt: skip
    assert partial == [*_names("inputs")[:9], "lse"], "and no actual_query_lengths"


@pytest.mark.parametrize(
    "operator", ["incremental_attention", "incremental_attention_with_stats", "incremental_attention_partial"]
)
def test_attributes_are_those_of_the_python_operator_with_the_same_defaults(operator: str) -> None:
    attributes = {item["name"]: item for item in OPERATOR.describe()["attributes"]}
    shared = [name for name, argument in _schema(operator).items() if "Tensor" not in str(argument.type)]
    assert shared == [name for name in attributes if name in shared]
    for name in shared:
        argument = _schema(operator)[name]
        required = not argument.has_default_value()
        assert attributes[name]["option"] == ("required" if required else "optional")
        assert attributes[name]["default"] == (None if required else argument.default_value)


def test_aclnn_parameters() -> None:
    """Those that the adapter passes, by the names that the toolkit makes of the definition's."""
    operator = OPERATOR.describe()
    items = [*operator["inputs"], *operator["attributes"], *operator["outputs"]]
    expected = []
    for (kind, name), item in zip(PARAMETERS[: len(items)], items, strict=True):
        optional = item["option"] == "optional" and kind.endswith("*")
        suffix = "Out" if item in operator["outputs"] else "Optional" if optional else ""
        expected.append((kind, name + suffix))
    parameters = OPERATOR.aclnn_signature()["get_workspace_size"]["parameters"]
    assert [(item["type"], item["name"]) for item in parameters] == [*expected, *PARAMETERS[len(items) :]]
