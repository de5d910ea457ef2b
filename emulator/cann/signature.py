"""The C functions that CANN's code generator makes of an operator definition.

Rules as in the generator's own test expectations (asc-devkit, tests/tools/utils/opbuild): inputs, attributes and
outputs in the order of the definition; names in camel case; "Optional" after optional tensors, strings and lists;
"Out" after outputs, and a single output is called "out".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ATTRIBUTE_TYPES = {
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "string": "char *",
    "list_int": "const aclIntArray *",
}
_TENSOR = "const aclTensor *"


def signature_of(operator: Mapping[str, Any]) -> dict[str, Any]:
    """Make both functions from an operator description; see `aclnn_signature`."""
    name = f"aclnn{operator['type']}"
    parameters = [_input(item) for item in operator["inputs"]]
    parameters += [_attribute(item) for item in operator["attributes"]]
    single = len(operator["outputs"]) == 1
    parameters += [
        _parameter("out" if single else f"{_camel(item['name'])}Out", _TENSOR, "output", item["name"])
        for item in operator["outputs"]
    ]
    parameters += [
        _parameter("workspaceSize", "uint64_t *", "result", None),
        _parameter("executor", "aclOpExecutor **", "result", None),
    ]
    run = [("workspace", "void *"), ("workspaceSize", "uint64_t"), ("executor", "aclOpExecutor *"),
           ("stream", "aclrtStream")]  # fmt: skip
    return {
        "header": f"aclnn_{_snake(operator['type'])}.h",
        "get_workspace_size": {"name": f"{name}GetWorkspaceSize", "returns": "aclnnStatus", "parameters": parameters},
        "run": {
            "name": name,
            "returns": "aclnnStatus",
            "parameters": [_parameter(parameter, kind, "launch", None) for parameter, kind in run],
        },
    }


def _input(item: Mapping[str, Any]) -> dict[str, Any]:
    suffix = "Optional" if item["option"] == "optional" else ""
    return _parameter(_camel(item["name"]) + suffix, _TENSOR, "input", item["name"])


def _attribute(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = _ATTRIBUTE_TYPES[item["type"]]
    suffix = "Optional" if item["option"] == "optional" and kind.endswith("*") else ""
    return _parameter(_camel(item["name"]) + suffix, kind, "attribute", item["name"])


def _parameter(name: str, kind: str, role: str, definition: str | None) -> dict[str, Any]:
    return {"name": name, "type": kind, "role": role, "definition": definition}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
