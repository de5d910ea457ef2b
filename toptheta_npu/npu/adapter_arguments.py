"""Writes the header of the adapter that is made from the table of arguments: what its functions take and pass on."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ..fallback.arguments import OPERATORS, TABLE, Argument
from ..fallback.schemas import taken_by
from .interface import PARAMETERS

HEADER = "adapter_arguments.h"
_FIELDS = {
    Tensor: "const at::Tensor&", Tensor | None: "OptionalTensor", int: "int64_t", float: "double",
    str: "c10::string_view",
}  # fmt: skip
_PARAMETERS = _FIELDS | {Tensor | None: "const OptionalTensor&"}
_GIVEN = {
    Tensor: 'give.Input(a.{0}, "{0}")', Tensor | None: 'give.Input(a.{0}, "{0}")', int: "a.{0}", float: "a.{0}",
    str: "give.Text(a.{0})",
}  # fmt: skip
_CACHES = ("key", "value")
_SCALES = ("key_antiquant_scale", "value_antiquant_scale")
_TEXT = """// Written by toptheta_npu/npu/adapter_arguments.py from the table of arguments.
#pragma once

namespace {{

using OptionalTensor = std::optional<at::Tensor>;
using Plan = int({plan});

// The arguments of the schemas, of which each operator leaves out some.
struct Arguments {{
{fields}}};

// Calls `plan` with what `give` makes of them, and with all that are not in a schema.
template <typename Give, typename... Others>
int CallPlan(Plan* plan, const Arguments& a, Give& give, Others... others)
{{
    return plan({given}, others...);
}}

// Each operator as the dispatcher calls it.
{takers}
}}  // namespace
"""
_TAKER = """template <auto kRun>
auto {operator}({parameters})
{{
    return kRun(Arguments{{{values}}});
}}
"""


def adapter_header() -> str:
    """Write the header."""
    in_order = sorted(TABLE.values(), key=lambda argument: argument.type not in (Tensor, Tensor | None))
    passed = [argument for argument in in_order if argument.about.operators]
    assert in_order[: len(passed)] == passed, "in the definition, what no schema has comes last"
    return _TEXT.format(
        plan=_lines(f"{kind} {name}" for kind, name in PARAMETERS),
        fields="".join(f"    {_FIELDS[argument.type]} {argument.name};\n" for argument in passed),
        given=_lines(_given(argument) for argument in passed),
        takers="\n".join(_taker(operator, passed) for operator in OPERATORS),
    )


def _lines(items: Iterable[str]) -> str:
    return ",\n    ".join(items)


def _given(argument: Argument) -> str:
    form = "Cache" if argument.name in _CACHES else "Scale" if argument.name in _SCALES else ""
    text = f'give.{form}(a.{{0}}, "{{0}}")' if form else _GIVEN[argument.type]
    return text.format(argument.name)


def _taker(operator: str, passed: list[Argument]) -> str:
    own = taken_by(operator)
    return _TAKER.format(
        operator=operator,
        parameters=_lines(f"{_PARAMETERS[argument.type]} {argument.name}" for argument in own),
        values=_lines(argument.name if argument in own else _default(argument) for argument in passed),
    )


def _default(argument: Argument) -> str:
    """Write in C++ what an operator without the argument takes for it."""
    if argument.default is None:
        return "std::nullopt"
    return f'"{argument.default}"' if argument.type is str else repr(argument.default)
