"""The parameter lists of a decode step: for the schemas, for the dispatcher and for the public functions.

The source of each function is generated from the table of `arguments`, as named tuples generate a constructor:
``**others`` would take a microsecond more.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from .arguments import CHOICES, OPERATORS, TABLE, Argument, Arguments

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SPELT = {
    Tensor: "Tensor {0}", Tensor | None: "Tensor? {0}=None", int: "int {0}", float: "float {0}", str: "str {0}",
}  # fmt: skip
_FIELDS = ", ".join(Arguments._fields)
_CHOICES = Arguments._fields[CHOICES]
#: The names that public functions use for arguments that are for tests.
PUBLIC_NAMES = {"path": "_path"}


def taken_by(operator: str) -> list[Argument]:
    """List the arguments of an operator in the order of its schema."""
    tensors, others = _split(operator)
    return tensors + others


def _split(operator: str) -> tuple[list[Argument], list[Argument]]:
    """Split the arguments of an operator: tensors, given by position, and the others, given by keyword."""
    own = [argument for argument in TABLE.values() if operator in argument.about.operators]
    tensors = [argument for argument in own if argument.type in (Tensor, Tensor | None)]
    return tensors, [argument for argument in own if argument not in tensors]


def _schema(operator: str) -> str:
    tensors, others = _split(operator)
    words = [_SPELT[argument.type].format(argument.name) for argument in tensors] + ["*"]
    for argument in others:
        word = _SPELT[argument.type].format(argument.name)
        default = f'"{argument.default}"' if argument.type is str else argument.default
        words.append(word if argument.required else f"{word}={default}")
    return f"({', '.join(words)}) -> {OPERATORS[operator]}"


#: One schema of each operator for all devices.
SCHEMAS = {operator: _schema(operator) for operator in OPERATORS}


def taking_arguments(operator: str, implementation: Callable[[Arguments], Any]) -> Callable[..., Any]:
    """Give ``implementation`` the parameters of an operator's schema, as the dispatcher calls it."""
    tensors, others = _split(operator)
    named = {True: "{0.name}", False: "{0.name}={0.default!r}"}
    parameters = [named[argument.required].format(argument) for argument in (*tensors, *others)]
    parameters.insert(len(tensors), "*")
    taken = {argument.name: argument.name for argument in (*tensors, *others)}
    return _written_out(
        operator, ", ".join(parameters), f"return call(make(Arguments, ({_values(taken)})))", implementation
    )


def giving_arguments(operator: str, overload: Callable[..., Any]) -> Callable[[Arguments], Any]:
    """Make a function that calls a registered operator with those checked arguments that its schema has.

    If all choices equal the schema's defaults, they are left out, so that the dispatcher need not convert them.
    """
    tensors, others = _split(operator)
    by_keyword = [f"{argument.name}={argument.name}" for argument in others]
    required = [word for word, argument in zip(by_keyword, others, strict=True) if argument.required]
    choices = [argument for argument in others if argument.name in _CHOICES]
    given = ", ".join(argument.name for argument in tensors)
    as_assumed = " and ".join(f"{argument.name} == {argument.default!r}" for argument in choices)
    body = f"""{_FIELDS} = arguments
        if {as_assumed}:
            return call({given}, {", ".join(required)})
        return call({given}, {", ".join(by_keyword)})"""
    return _written_out(operator, "arguments", body, overload)


def with_arguments(run: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Write the body of a public function. Its declaration names the arguments one by one for editors and `help`.

    The body calls ``run`` with the unchanged `Arguments`, and with the other parameters by position. Arguments that
    the function does not have take the table's default.
    """

    def write(declaration: _Function) -> _Function:
        parameters = inspect.signature(declaration).parameters.values()
        public = {PUBLIC_NAMES.get(name, name): name for name in TABLE}
        taken = {public[each.name]: each.name for each in parameters if each.name in public}
        others = ["", *(each.name for each in parameters if each.name not in public)]
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
        body = f"return call(Arguments._make(({_values(taken)})){', '.join(others)})"  # traced by torch.compile
        written = _written_out(declaration.__name__, str(inspect.Signature(bare))[1:-1], body, run)
        return functools.update_wrapper(written, declaration)  # type: ignore[return-value]

    return write


def _values(taken: dict[str, str]) -> str:
    """Write the value of each field of `Arguments`: a parameter, or the table's default."""
    return ", ".join(taken.get(name, repr(argument.default)) for name, argument in TABLE.items())


def _written_out(name: str, parameters: str, body: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that calls ``call``."""
    source = f"""def write(call, make, Arguments):
    def {name}({parameters}):
        {body}
    return {name}"""
    scope: dict[str, Any] = {}
    exec(source, scope)
    written: Callable[..., Any] = scope["write"](call, tuple.__new__, Arguments)
    return written
