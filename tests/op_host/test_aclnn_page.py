"""docs/aclnnTopThetaIncrementalAttention.md names the functions and parameters that follow from the definition."""

from __future__ import annotations

import re
from pathlib import Path

from toptheta_host_model import OPERATOR

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "aclnnTopThetaIncrementalAttention.md").read_text()
_DTYPES = {"float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT", "int8": "INT8", "int32": "INT32",
           "int64": "INT64"}  # fmt: skip


def _declared(function: str) -> list[str]:
    """The parameters of a function as the page declares them."""
    declaration = re.search(rf"aclnnStatus {function}\(([^)]*)\)", _PAGE)
    assert declaration is not None
    return [re.sub(r"\s*\*\s*", "*", " ".join(each.split())) for each in declaration[1].split(",")]


def _described() -> dict[str, list[str]]:
    """The rows of the table of parameters, by name."""
    table = _PAGE.split("### Parameters")[1].split("### Returns")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    return {row[0]: row[1:] for row in rows[1:]}


def test_both_functions_are_declared_as_cann_generates_them() -> None:
    signature = OPERATOR.aclnn_signature()
    plan = signature["get_workspace_size"]
    expected = [re.sub(r"\s*\*\s*", "*", f"{each['type']} {each['name']}") for each in plan["parameters"]]
    assert _declared(plan["name"]) == expected
    assert _declared("aclnnTopThetaIncrementalAttention") == [
        "void*workspace", "uint64_t workspaceSize", "aclOpExecutor*executor", "aclrtStream stream",
    ]  # fmt: skip


def test_every_parameter_is_described_in_its_place() -> None:
    parameters = OPERATOR.aclnn_signature()["get_workspace_size"]["parameters"]
    assert list(_described()) == [each["name"] for each in parameters]


def test_dtypes_are_those_of_the_definition() -> None:
    definition = OPERATOR.describe()
    types = {each["name"]: each["types"] for each in (*definition["inputs"], *definition["outputs"])}
    checked = 0
    for parameter in OPERATOR.aclnn_signature()["get_workspace_size"]["parameters"]:
        cell = _described()[parameter["name"]][2]
        if parameter["definition"] in types and set(cell.split(", ")) <= set(_DTYPES.values()):
            assert set(cell.split(", ")) == {_DTYPES[each] for each in types[parameter["definition"]]}
            checked += 1
    assert checked >= 15
