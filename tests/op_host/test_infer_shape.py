"""Shapes and dtypes of the outputs: what was not asked for is empty."""

from __future__ import annotations

import pytest

from emulator.cann import OperatorError, TensorSpec
from tests.op_host.operator_calls import Shape
from toptheta_host_model import OPERATOR

_EMPTY = (0,)
_PER_HEAD = (3, 6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH"])
def test_plain_call_has_one_output(layout: str, dtype: str) -> None:
    shape = Shape(layout=layout, batch=3, group=3, dtype=dtype)
    call = shape.call()
    outputs = OPERATOR.infer_shape(call.inputs, call.attrs)
    assert outputs.pop("attention_out") == TensorSpec(shape.query, dtype)
    assert {spec.shape for spec in outputs.values()} == {_EMPTY}


def test_statistics() -> None:
    shape = Shape(batch=3, group=3)
    call = shape.call(with_stats=True)
    outputs = OPERATOR.infer_shape(call.inputs, call.attrs)
    assert [outputs[name] for name in ("attention_out", "lse", "kept", "value_rows")] == [
        TensorSpec(shape.query, "float16"), TensorSpec(_PER_HEAD, "float32"), TensorSpec(_PER_HEAD, "int32"),
        TensorSpec((3, 2), "int32"),
    ]  # fmt: skip
    assert all(outputs[name].shape == _EMPTY for name in outputs if name.startswith("part_"))


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH"])
def test_part(layout: str) -> None:
    shape = Shape(layout=layout, batch=3, group=3, dtype="bfloat16")
    call = shape.call(partial=True)
    outputs = OPERATOR.infer_shape(call.inputs, call.attrs)
    assert outputs["part_out"] == TensorSpec(shape.query, "float32")
    for name in ("part_maximum", "part_kept_mass", "part_discarded_mass"):
        assert outputs[name] == TensorSpec(_PER_HEAD, "float32")
    assert outputs["kept"] == TensorSpec(_PER_HEAD, "int32")
    assert all(outputs[name].shape == _EMPTY for name in ("attention_out", "lse", "value_rows"))


def test_dtypes_do_not_depend_on_what_is_asked_for() -> None:
    declared = {item["name"]: item["types"][0] for item in OPERATOR.describe()["outputs"]}
    attrs: dict[str, bool]
    for attrs in ({}, {"with_stats": True}, {"partial": True}):
        call = Shape().call().with_attrs(**attrs)
        assert {name: spec.dtype for name, spec in OPERATOR.infer_shape(call.inputs, call.attrs).items()} == declared


def test_unknown_sizes_stay_unknown() -> None:
    """-1 is a size and -2 a rank that a graph compiler does not know yet."""
    call = Shape().call(with_stats=True)
    some = OPERATOR.infer_shape(call.with_shapes(query=(-1, 4, 1, 32)).inputs, call.attrs)
    assert some["attention_out"].shape == (-1, 4, 1, 32)
    assert (some["lse"].shape, some["value_rows"].shape) == ((-1, 4), (-1, 2))
    none = OPERATOR.infer_shape(call.with_shapes(query=(-2,)).inputs, call.attrs)
    assert none["attention_out"].shape == none["lse"].shape == none["value_rows"].shape == (-2,)
    assert none["part_out"].shape == _EMPTY


def test_scalar_query_is_refused() -> None:
    call = Shape().call()
    with pytest.raises(OperatorError, match="expected a query with dimensions"):
        OPERATOR.infer_shape(call.with_shapes(query=()).inputs, call.attrs)
