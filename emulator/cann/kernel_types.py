"""Which builds of its kernel an operator definition asks for: CANN compiles one for each combination of dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

#: Names of dtypes in a kernel's source.
_DEVICE_TYPES = {
    "float32": "float", "float16": "half", "bfloat16": "bfloat16_t", "int8": "int8_t", "int32": "int32_t",
    "int64": "int64_t", "float64": "double",
}  # fmt: skip


def kernel_combinations(definition: Mapping[str, Any]) -> list[dict[str, str]]:
    """List the dtypes of the required inputs at the front, by name, each combination once.

    The kernel is built once for each of them. An optional input may be left out, so its dtype chooses no kernel.
    """
    front = list(takewhile(lambda item: item["option"] == "required", definition["inputs"]))
    columns = dict.fromkeys(zip(*(item["types"] for item in front), strict=True))
    return [{item["name"]: dtype for item, dtype in zip(front, column, strict=True)} for column in columns]


def kernel_defines(definition: Mapping[str, Any], dtypes: Mapping[str, str]) -> dict[str, str]:
    """List the macros of a build: DTYPE_ and the name of each input and output whose dtype `dtypes` settles.

    Args:
        definition: from `Operator.describe`.
        dtypes: of some inputs by name.

    Raises:
        ValueError: the definition has no such combination.
    """
    parameters = [*definition["inputs"], *definition["outputs"]]
    types = {item["name"]: item["types"] for item in parameters}
    columns = [column for column in range(len(parameters[0]["types"]))
               if all(types[name][column] == dtype for name, dtype in dtypes.items())]  # fmt: skip
    if not columns:
        raise ValueError(f"dtypes: expected a combination that {definition['type']} has, got {dict(dtypes)}")
    found = {name: {each[column] for column in columns} for name, each in types.items()}
    return {f"DTYPE_{name.upper()}": _DEVICE_TYPES[min(each)] for name, each in found.items() if len(each) == 1}
