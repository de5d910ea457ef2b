"""The one table of arguments against everything that is not made from it: signatures, the C++ struct, the page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

import toptheta_npu
from tests.markdown import ROOT
from toptheta_npu import cpu
from toptheta_npu.context_parallel.attention import _OPTIONS
from toptheta_npu.cpu.library import FIELDS
from toptheta_npu.fallback.arguments import FLOAT_TENSORS, OPERATORS, TABLE, Arguments
from toptheta_npu.fallback.schemas import PUBLIC_NAMES, SCHEMAS

_WHOLE_ROW = TABLE["sdc"].about.operators
#: What a public function resolves before the operator sees it.
_RESOLVED = {"num_heads": None, "num_key_value_heads": None, "scale_value": None}
_HEADER = Path(cpu.__file__).with_name("source") / "arguments.h"
#: Fields of struct Arguments that have another name than the argument.
_NAMES = {"lse": "row_lse"}
_STRUCTS = {"TensorView": "Pqqqq", "Integers": "Pq", "Scales": "Pqqqqq"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_public_functions_take_the_arguments_of_the_table(operator: str) -> None:
    parameters = inspect.signature(getattr(toptheta_npu, operator)).parameters
    expected = {
        PUBLIC_NAMES.get(argument.name, argument.name): inspect.Parameter.empty
        if argument.required
        else argument.default
        for argument in TABLE.values()
        if operator in argument.about.operators or argument.name == "block_size"
    }
    found = {name: parameter.default for name, parameter in parameters.items() if name != "unsupported"}
    assert found == expected | _RESOLVED


def test_context_parallelism_takes_them_too() -> None:
    whole = {"value_mean", "actual_query_lengths"}  # of all ranks; a share of the keys is told what each token sees
    parameters = inspect.signature(toptheta_npu.incremental_attention).parameters
    defaults = {name: each.default for name, each in parameters.items()}
    required = {"query", "key", "value", "threshold"}
    taken = {name for name in defaults if name[0] != "_"} - whole - required - {"unsupported"}
    assert {name: defaults[name] for name in taken} == _OPTIONS


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_registered_with_the_schemas_of_the_table(operator: str) -> None:
    registered = getattr(torch.ops.toptheta_npu, operator).default._schema
    assert str(registered) == str(torch._C.parse_schema(f"toptheta_npu::{operator}{SCHEMAS[operator]}"))


def test_the_struct_of_the_cpu_kernel_is_what_python_packs() -> None:
    text = _HEADER.read_text().split("struct Arguments {")[1].split("};")[0]
    declared = re.findall(r"^ +([\w ]+?[\w*]) (\w+);", text, re.MULTILINE)
    codes = {"int64_t": "q", "double": "d", "RunInParallel": "P"}
    packed = [_STRUCTS.get(kind) or codes.get(kind, "P") for kind, _ in declared]
    assert "".join(packed) == "".join(FIELDS.values())
    pointers = [name for kind, name in declared if kind == "const float*" and name != "threshold"]
    assert pointers == [_NAMES.get(name, name) for name in Arguments._fields[FLOAT_TENSORS]]


def _page_rows() -> list[str]:
    defaults = inspect.signature(toptheta_npu.incremental_attention).parameters
    rows = ["| argument | shape | dtypes | default | for | |", "|---|---|---|---|---|---|"]
    order = sorted(TABLE.values(), key=lambda argument: not argument.about.dtypes)  # tensors first
    for argument in order:
        about = argument.about
        if argument.name == "path":
            continue
        dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in about.dtypes)
        given = defaults[argument.name].default if argument.name in defaults else None
        default = "required" if given is inspect.Parameter.empty else f"`{given!r}`".replace("'", '"')
        parts = {_WHOLE_ROW: "whole rows", tuple(OPERATORS): "all", (): "all"}.get(about.operators, "parts")
        shape = about.shape or {int: "int", float: "float", str: "str"}[argument.type]
        rows.append(f"| `{argument.name}` | {shape} | {dtypes} | {default} | {parts} | {about.meaning} |")
    return rows


def test_the_page_shows_the_table() -> None:
    expected = "\n".join(_page_rows())
    assert expected in (ROOT / "docs" / "operator.md").read_text(), f"put this into docs/operator.md:\n{expected}"
