"""Functions that are written out from the table of arguments: nothing is lost or changes its place on the way."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from toptheta_npu.fallback.arguments import OPERATORS, TABLE, Arguments
from toptheta_npu.fallback.schemas import giving_arguments, taken_by, taking_arguments, with_arguments


def _filled(operator: str) -> Arguments:
    """A word for each argument that the operator has, and the table's default for others."""
    own = {argument.name for argument in taken_by(operator)}
    return Arguments(**{name: f"<{name}>" if name in own else each.default for name, each in TABLE.items()})


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_goes_into_a_call_comes_out_of_it(operator: str) -> None:
    arguments = _filled(operator)
    assert giving_arguments(operator, taking_arguments(operator, lambda taken: taken))(arguments) == arguments


@pytest.mark.parametrize("operator", OPERATORS)
def test_choices_are_given_unless_all_are_the_defaults(operator: str) -> None:
    call = giving_arguments(operator, lambda *_, **options: options)
    choices = {each.name for each in taken_by(operator) if not each.required and each.default is not None}
    defaults = _filled(operator)._replace(**{name: TABLE[name].default for name in choices})
    assert call(defaults).keys() == {"num_heads", "num_key_value_heads", "scale_value"}
    assert choices <= call(defaults._replace(placement="post_softmax")).keys()


def test_a_declaration_becomes_a_function_that_hands_over_what_it_was_given() -> None:
    @with_arguments(lambda given, *others: (given, others))
    def declared(query: Any, key: Any, value: Any, *, sdc: str = "none", group: Any = None, _path: str = "auto") -> Any:
        """A page."""

    given, others = declared("q", "k", "v", _path="dense", group=3)
    assert given == Arguments(None, None, None, "q", "k", "v", None, sdc="none", path="dense")  # type: ignore[arg-type]
    assert others == (3,)
    assert declared.__doc__ == "A page."
    assert list(inspect.signature(declared).parameters) == ["query", "key", "value", "sdc", "group", "_path"]
    with pytest.raises(TypeError, match=r"declared\(\) got an unexpected keyword argument 'other'"):
        declared("q", "k", "v", other=1)  # type: ignore[call-arg]
