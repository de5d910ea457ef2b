"""Errors that the tiling function shares with the Python package; tests/ut/op_host has those of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from emulator.cann import OperatorError, TensorSpec
from tests.cases import ERROR_CASES, PER_HEAD, ErrorCase, valid_arguments
from tests.op_host.operator_calls import Call, Shape
from toptheta_host_model import OPERATOR

_BASE = Shape()  # BNSD: query [2, 4, 1, 32], key and value [2, 2, 64, 32]


def _message_of(call: Call) -> str:
    with pytest.raises(OperatorError) as caught:
        call.run()
    return str(caught.value).removeprefix("TopThetaIncrementalAttention: ")


#: Cases of the common table that a caller of the C function can make too.
_SHARED = (
    "no-sequence", "head-dim-small", "head-dim-large", "key-dims", "key-head-dim",
    "key-batch", "key-heads", "key-no-rows", "value-shape", "threshold-heads", "threshold-batch", "threshold-dtype",
    "lengths-shape", "lengths-dtype", "start-shape", "table-batch", "table-dtype", "mean-heads", "mean-head-dim",
    "mass-shape", "bsh-heads-not-divisor", "bsh-kv-heads-not-divisor", "heads-contradict", "kv-heads-contradict",
    "layout", "placement", "private-path", "gamma-negative", "gamma-nan", "scale-inf", "paged-no-lengths",
    "paged-start", "paged-no-block-size", "block-size-no-table", "offline-no-mass", "mass-not-offline",
    "vmc-without-sdc", "post-sdc-none", "post-sdc-exp-threshold", "partial-post-no-lse", "partial-pre-lse",
    *(f"int8-mode-{mode}" for mode in (1, 2, 4, -1)), "int8-paged-mode", "int8-token-shape",
    "partial-lse-shape", *(case for name in PER_HEAD for case in (f"{name}-dtype", f"decode-{name}-shape")),
)  # fmt: skip
_BY_ID = {case.id: case for case in ERROR_CASES}


@pytest.mark.parametrize("case_id", _SHARED)
def test_errors_have_the_words_of_the_python_package(case_id: str) -> None:
    case = _BY_ID[case_id]
    message = case.message.replace(", or None", "").replace("_path:", "path:")
    message = re.sub("^lse", "row_lse", message)
    assert _message_of(_call_of(case)) == message


def _call_of(case: ErrorCase) -> Call:
    """The call behind an error case, with float16 in place of the float32 that the NPU does not take."""
    arguments = valid_arguments(case.base)
    changed: dict[str, Any] = arguments | case.change(arguments)
    if "lse" in changed:
        changed["row_lse"] = changed.pop("lse")
    inputs = {name: _spec(name, value) for name, value in changed.items() if _is_input(name, value)}
    layout = changed.get("input_layout", "BNSD")
    valid_query = arguments["query"]
    kv_axis = 2 if layout == "BSND" else 1
    attrs = {
        "num_heads": changed.get("num_heads") or valid_query.shape[1],
        "num_key_value_heads": changed.get("num_key_value_heads") or changed["key"].shape[kv_axis],
        "scale_value": changed.get("scale_value", 0.25), "input_layout": layout,
        "placement": changed.get("placement", "pre_softmax"), "sdc": changed.get("sdc", "exact"),
        "sdc_gamma": changed.get("sdc_gamma", 0.05), "path": changed.get("_path", "auto"),
        "block_size": changed.get("block_size", 0), "partial": case.base == "partial",
        **{name: value for name, value in changed.items() if name.endswith("_antiquant_mode")},
    }  # fmt: skip
    return Call(inputs, attrs)


def _is_input(name: str, value: Any) -> bool:
    return isinstance(value, Tensor) or (name in ("actual_seq_lengths", "key_start") and isinstance(value, list))


def _spec(name: str, value: Any) -> TensorSpec:
    if isinstance(value, list):
        return TensorSpec((len(value),), "int32")
    dtype = str(value.dtype).removeprefix("torch.")
    if name in ("query", "key", "value") and dtype != "int8":
        dtype = "float16"
    return TensorSpec(tuple(value.shape), dtype)


def _without(name: str) -> Callable[[], object]:
    call = _BASE.call()
    return call.with_inputs(**{name: None}).run


@pytest.mark.parametrize("name", ["query", "key", "value", "threshold"])
def test_missing_input(name: str) -> None:
    with pytest.raises(OperatorError, match=f"^{name}: expected a tensor, got None"):
        _without(name)()


@pytest.mark.parametrize("name", ["num_heads", "num_key_value_heads", "scale_value"])
def test_missing_attribute(name: str) -> None:
    call = _BASE.call()
    attrs = {key: value for key, value in call.attrs.items() if key != name}
    with pytest.raises(OperatorError, match=f"^{name}: expected a value, got None"):
        OPERATOR.run_tiling(call.inputs, attrs)
