"""Writes the C++ source and the header of a custom operator's aclnn functions, as CANN's build would generate them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ACL_TYPES = {
    "float32": "ACL_FLOAT", "float16": "ACL_FLOAT16", "bfloat16": "ACL_BF16", "int8": "ACL_INT8",
    "int32": "ACL_INT32", "int64": "ACL_INT64", "float64": "ACL_DOUBLE",
}  # fmt: skip
_ADD = {"input": "Input", "attribute": "Attribute", "output": "Output"}
_TABLES = {"input": "inputs", "attribute": "attributes", "output": "outputs"}


def aclnn_header(signature: Mapping[str, Any]) -> str:
    """Write the header that an operator package installs; `signature` is from `emulator.cann.aclnn_signature`."""
    guard = signature["header"].replace(".", "_").upper()
    return "\n".join([
        f"#ifndef {guard}", f"#define {guard}", "", '#include "aclnn/acl_meta.h"', "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        '__attribute__((visibility("default")))', f"{declaration(signature['get_workspace_size'])};", "",
        '__attribute__((visibility("default")))', f"{declaration(signature['run'])};", "",
        "#ifdef __cplusplus", "}", "#endif", "", f"#endif  // {guard}", "",
    ])  # fmt: skip


def aclnn_source(
    operator: Mapping[str, Any], signature: Mapping[str, Any], kernel: str, kernels: Mapping[tuple[str, ...], Path]
) -> str:
    """Write both aclnn functions over `package/operator_call.h`.

    Args:
        operator: the complete definition, from `emulator.cann.describe_operator`.
        signature: what the functions look like; it may lack arguments of the definition.
        kernel: name of the kernel function.
        kernels: kernel libraries by the dtypes of the first inputs.
    """
    plan, run = signature["get_workspace_size"], signature["run"]
    calls = []
    for parameter in plan["parameters"]:
        if parameter["role"] in _ADD:
            names = [item["name"] for item in operator[_TABLES[parameter["role"]]]]
            index = names.index(parameter["definition"])
            calls.append(f"    call.{_ADD[parameter['role']]}({index}, {_argument(parameter)});")
    launch = ", ".join(parameter["name"] for parameter in run["parameters"])
    return "\n".join([
        f"// Generated from the definition of the operator {operator['type']}.",
        '#include "operator_call.h"', "", "using namespace acl_emulator;", "",
        *_definition(operator, run["name"], kernel, kernels), "",
        'extern "C" {', "",
        f"{declaration(plan)} {{", "    OperatorCall call(kOperator);", *calls,
        "    return call.Plan(workspaceSize, executor);", "}", "",
        f"{declaration(run)} {{", f"    return RunExecutor(kOperator.aclnnName, {launch});", "}", "",
        '}  // extern "C"', "",
    ])  # fmt: skip


def _argument(parameter: Mapping[str, Any]) -> str:
    """Write the parameter as the overload for its attribute type takes it."""
    name = parameter["name"]
    return f"static_cast<const char*>({name})" if parameter["type"] == "char *" else str(name)


def declaration(function: Mapping[str, Any]) -> str:
    """Declare one of the functions of `emulator.cann.aclnn_signature` as a header does, without the semicolon."""
    parameters = ",\n    ".join(f"{parameter['type']} {parameter['name']}" for parameter in function["parameters"])
    return f"{function['returns']} {function['name']}(\n    {parameters})"


def _definition(
    operator: Mapping[str, Any], aclnn: str, kernel: str, kernels: Mapping[tuple[str, ...], Path]
) -> list[str]:
    libraries = [
        f"{{{{{', '.join(_ACL_TYPES[dtype] for dtype in dtypes)}}}, {json.dumps(str(path))}}}"
        for dtypes, path in kernels.items()
    ]
    attributes = ", ".join(json.dumps(item["name"]) for item in operator["attributes"])
    return [
        "static const OperatorDefinition kOperator = {",
        f"    {json.dumps(aclnn)}, {json.dumps(kernel)},",
        f"    {{{', '.join(libraries)}}},",
        "    {", *(f"        {_tensor(item)}," for item in operator["inputs"]), "    },",
        f"    {{{attributes}}},",
        "    {", *(f"        {_tensor(item)}," for item in operator["outputs"]), "    },",
        "};",
    ]  # fmt: skip


def _tensor(item: Mapping[str, Any]) -> str:
    flags = (item["option"] == "required", item["contiguous"] == "ignore")
    types = ", ".join(_ACL_TYPES[name] for name in item["types"])
    required, any_strides = (str(flag).lower() for flag in flags)
    return f"{{{json.dumps(item['name'])}, {required}, {any_strides}, {{{types}}}}}"
