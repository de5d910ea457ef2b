"""The registered definition against the contract: names, order, dtypes; against the kernel's entry and the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import toptheta_npu  # noqa: F401 (registers the schema)
from emulator.cann import aclnn_signature, describe_operator
from toptheta_npu.fallback.arguments import TABLE
from toptheta_npu.npu.interface import INPUTS, PARAMETERS

_ROOT = Path(__file__).resolve().parents[2]
_KERNEL = _ROOT / "op_kernel" / "top_theta_incremental_attention.cpp"
_CACHE = ["float16", "float16", "bfloat16", "bfloat16"]
_INTEGERS = ["int32", "int64", "int32", "int64"]
_FLOAT32 = ["float32"] * 4
_INT32 = ["int32"] * 4
#: Types of an input by the dtypes that the table of arguments allows; the NPU takes neither float32 nor int8.
_TYPES = {
    (torch.float16, torch.bfloat16, torch.float32): _CACHE,
    (torch.float16, torch.bfloat16, torch.float32, torch.int8): _CACHE, (torch.int32, torch.int64): _INTEGERS,
    (torch.float32,): _FLOAT32, (torch.int32,): _INT32,
}  # fmt: skip
#: Attributes of the kernel alone, behind those of the table.
_OWN_ATTRIBUTES: list[tuple[str, str, str, Any]] = [
    ("key_strides", "optional", "list_int", []), ("value_strides", "optional", "list_int", []),
    ("with_stats", "optional", "bool", False), ("partial", "optional", "bool", False),
]  # fmt: skip
_KINDS = {int: "int", float: "float", str: "string"}
_OUTPUTS = [
    ("attention_out", "required", _CACHE), ("lse", "required", _FLOAT32), ("kept", "required", _INT32),
    ("value_rows", "required", _INT32), ("part_out", "required", _FLOAT32), ("part_maximum", "required", _FLOAT32),
    ("part_kept_mass", "required", _FLOAT32), ("part_discarded_mass", "required", _FLOAT32),
]  # fmt: skip


def _names(kind: str) -> list[str]:
    return [item["name"] for item in describe_operator()[kind]]


def test_type_and_socs() -> None:
    operator = describe_operator()
    assert operator["type"] == "TopThetaIncrementalAttention"
    assert operator["socs"] == ["ascend910b", "ascend910_93"]


def test_inputs() -> None:
    inputs = describe_operator()["inputs"]
    assert [(item["name"], item["option"], item["types"]) for item in inputs] == [
        (name, "required" if TABLE[argument].required else "optional", _TYPES[TABLE[argument].about.dtypes])
        for name, argument in INPUTS.items()
    ]


def test_attributes() -> None:
    attributes = describe_operator()["attributes"]
    assert [(item["name"], item["option"], item["type"], item["default"]) for item in attributes] == [
        *(
            (argument.name, "required" if argument.required else "optional", _KINDS[argument.type], argument.default)
            for argument in TABLE.values()
            if argument.type in _KINDS and argument.about.kernel
        ),
        *_OWN_ATTRIBUTES,
    ]


def test_outputs() -> None:
    outputs = describe_operator()["outputs"]
    assert [(item["name"], item["option"], item["types"]) for item in outputs] == _OUTPUTS


def test_only_key_and_value_may_be_strided() -> None:
    """Anything else strided is copied first, which a cache must never be."""
    contiguous = {item["name"]: item["contiguous"] for item in describe_operator()["inputs"]}
    assert contiguous == {name: "ignore" if name in ("key", "value") else "auto" for name in INPUTS}


def test_nothing_depends_on_values() -> None:
    """Neither by declaration nor by code: a captured launch replays with other lengths."""
    operator = describe_operator()
    assert {item["value_depend"] for item in (*operator["inputs"], *operator["outputs"])} == {"ignore"}
    for source in sorted((_ROOT / "op_host").glob("*.*")):
        assert not re.search(r"Get\w*InputTensor|TilingInputsDataDependency", source.read_text()), source.name


def test_formats_are_nd() -> None:
    operator = describe_operator()
    assert all(item["formats"] == ["ND"] * 4 for item in (*operator["inputs"], *operator["outputs"]))


def test_kernel_entry_takes_the_same_arguments_in_the_same_order() -> None:
    entry = re.search(r"void top_theta_incremental_attention\(([^)]*)\)", _KERNEL.read_text())
    assert entry is not None
    arguments = re.findall(r"GM_ADDR (\w+)", entry[1])
    assert arguments == [*_names("inputs"), *_names("outputs"), "workspace", "tiling"]


def _schema(operator: str) -> dict[str, Any]:
    """The arguments that the NPU kernel has, by name."""
    schema = getattr(torch.ops.toptheta_npu, operator).default._schema
    return {argument.name: argument for argument in schema.arguments if TABLE[argument.name].about.kernel}


def test_inputs_are_the_tensors_of_the_python_operator() -> None:
    tensors = [name for name, argument in _schema("incremental_attention").items() if "Tensor" in str(argument.type)]
    assert _names("inputs") == [*tensors, "row_lse"]
    partial = [name for name, argument in _schema("incremental_attention_partial").items()
               if "Tensor" in str(argument.type)]  # fmt: skip
    assert partial == [*_names("inputs")[:7], "lse"]


@pytest.mark.parametrize(
    "operator", ["incremental_attention", "incremental_attention_with_stats", "incremental_attention_partial"]
)
def test_attributes_are_those_of_the_python_operator_with_the_same_defaults(operator: str) -> None:
    attributes = {item["name"]: item for item in describe_operator()["attributes"]}
    shared = [name for name, argument in _schema(operator).items() if "Tensor" not in str(argument.type)]
    assert shared == [name for name in attributes if name in shared]
    for name in shared:
        argument = _schema(operator)[name]
        required = not argument.has_default_value()
        assert attributes[name]["option"] == ("required" if required else "optional")
        assert attributes[name]["default"] == (None if required else argument.default_value)


def test_aclnn_functions() -> None:
    signature = aclnn_signature()
    assert signature["header"] == "aclnn_top_theta_incremental_attention.h"
    first, second = signature["get_workspace_size"], signature["run"]
    assert first["name"] == "aclnnTopThetaIncrementalAttentionGetWorkspaceSize"
    assert second["name"] == "aclnnTopThetaIncrementalAttention"
    assert {first["returns"], second["returns"]} == {"aclnnStatus"}
    assert [(item["type"], item["name"]) for item in second["parameters"]] == [
        ("void *", "workspace"), ("uint64_t", "workspaceSize"), ("aclOpExecutor *", "executor"),
        ("aclrtStream", "stream"),
    ]  # fmt: skip


def test_aclnn_parameters() -> None:
    """Those that the adapter passes, by the names that the toolkit makes of the definition's."""
    operator = describe_operator()
    items = [*operator["inputs"], *operator["attributes"], *operator["outputs"]]
    expected = []
    for (kind, name), item in zip(PARAMETERS[: len(items)], items, strict=True):
        optional = item["option"] == "optional" and kind.endswith("*")
        suffix = "Out" if item in operator["outputs"] else "Optional" if optional else ""
        expected.append((kind, name + suffix))
    parameters = aclnn_signature()["get_workspace_size"]["parameters"]
    assert [(item["type"], item["name"]) for item in parameters] == [*expected, *PARAMETERS[len(items) :]]
