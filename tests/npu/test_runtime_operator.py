"""Errors of both phases of the generated aclnn functions; tests/ut/op_api has null pointers and right calls."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from emulator.acl.environment import in_emulator
from emulator.acl.settings import current_settings
from tests.npu.acl_calls import OperatorCall, current_stream, live_executors, recent_error, runtime

if not in_emulator():
    pytest.skip("the functions of the emulated package", allow_module_level=True)

BATCH, HEADS, ROWS, DIM = 2, 2, 256, 64
CACHE = ROWS * DIM
ATTRIBUTES: dict[str, Any] = {
    "num_heads": HEADS, "num_key_value_heads": HEADS, "scale_value": 0.125, "input_layout": b"BNSD",
    "placement": b"pre_softmax", "sdc": b"exact", "path": b"auto", "key_strides": [HEADS * CACHE, CACHE, DIM],
    "value_strides": [HEADS * CACHE, CACHE, DIM],
}  # fmt: skip
ASYNC = current_settings().get("asynchronous") == "1"


def _inputs() -> dict[str, Tensor]:
    torch.manual_seed(0)
    query, key, value = (torch.randn(BATCH, HEADS, rows, DIM).half().npu() for rows in (1, ROWS, ROWS))
    return {"query": query, "key": key, "value": value, "threshold": torch.full((HEADS,), 0.5).npu()}


def make_call(
    attributes: dict[str, Any] | None = None, storage: dict[str, int] | None = None, **tensors: Tensor
) -> tuple[OperatorCall, Tensor]:
    """A call and its output; keywords replace inputs."""
    inputs = _inputs() | tensors
    out = torch.empty(BATCH, HEADS, 1, DIM, dtype=torch.float16, device="npu")
    torch.npu.synchronize()
    return OperatorCall(inputs, ATTRIBUTES | (attributes or {}), {"attention_out": out}, storage), out


def test_a_dtype_beside_those_before_it_is_refused() -> None:
    call, _ = make_call(key=torch.ones(2, 2, 256, 64).npu())
    assert call.plan() == 161002
    assert "key: expected float16 or int8 beside the arguments before it, got float32" in recent_error()


def test_a_strided_input_is_refused_where_cann_would_copy_it() -> None:
    call, _ = make_call(threshold=torch.ones(2 * HEADS, device="npu")[::2])
    assert call.plan() == 161002
    assert "threshold: expected a contiguous tensor, got the strides [2] for [2]" in recent_error()


def test_an_output_of_another_shape_is_refused() -> None:
    call = OperatorCall(_inputs(), ATTRIBUTES, {"attention_out": torch.empty(2, 2, 64, device="npu").half()})
    assert call.plan() == 161002
    assert "attention_out: expected the shape [2, 2, 1, 64]" in recent_error()


@pytest.mark.parametrize("name", ["query", "attention_out", "value_strides"])
def test_a_descriptor_must_live_until_the_second_phase_has_returned(name: str) -> None:
    call, _ = make_call()
    assert call.plan() == 0
    call.destroy(name)
    assert call.run() == 161002
    kind = "aclIntArray" if name == "value_strides" else "aclTensor"
    assert f"{name}: its {kind} has been destroyed" in recent_error()


def test_an_attribute_string_must_live_until_the_second_phase_has_returned() -> None:
    text = ctypes.create_string_buffer(b"pre_softmax")
    call, _ = make_call({"placement": ctypes.addressof(text)})
    assert call.plan() == 0
    text.value = b"gone"
    assert call.run() == 161002
    assert "placement: its string has been destroyed" in recent_error()


def test_descriptors_may_go_when_the_second_phase_has_returned() -> None:
    call, out = make_call()
    assert call.plan() == 0
    assert call.run() == 0
    for name in ("query", "key", "key_strides"):
        call.destroy(name)
    torch.npu.synchronize()
    assert out.isfinite().all()


def test_the_workspace_must_be_as_large_as_asked_for() -> None:
    call, _ = make_call({}, actual_seq_lengths=torch.tensor([100, 200], dtype=torch.int32).npu())
    assert call.plan() == 0
    assert call.run(torch.empty(16, dtype=torch.uint8, device="npu")) == 161002
    assert "workspace: expected the" in recent_error()


def test_memory_of_the_host_is_refused() -> None:
    call, _ = make_call(value=torch.ones(2, 2, 256, 64).half())
    assert call.plan() == 0
    assert call.run() == 161002
    assert "value: expected 131072 bytes of one allocation on device 0, got other memory" in recent_error()


def test_an_executor_runs_once() -> None:
    call, _ = make_call()
    assert call.plan() == 0
    assert call.run() == 0
    assert call.run() == 161002
    assert "executor: expected one that has not been run yet" in recent_error()


def test_an_executor_may_be_given_up() -> None:
    before = live_executors()
    call, _ = make_call()
    assert call.plan() == 0
    assert live_executors() == before + 1
    opapi = ctypes.CDLL("libopapi.so")
    assert opapi.aclDestroyAclOpExecutor(call.executor) == 0
    assert live_executors() == before
    assert opapi.aclDestroyAclOpExecutor(call.executor) == 161002
    assert call.run() == 161002


def test_a_stream_that_is_gone_is_refused() -> None:
    call, _ = make_call()
    assert call.plan() == 0
    stream = ctypes.c_void_p()
    assert runtime().aclrtCreateStream(ctypes.byref(stream)) == 0
    assert runtime().aclrtDestroyStream(stream) == 0
    assert call.run(stream=stream) == 361001
    assert "expected a stream that exists" in recent_error()


def test_findings_of_the_host_model_are_errors_of_the_call() -> None:
    call, _ = make_call(storage={"key": CACHE})
    assert call.plan() == 0
    status = call.run()
    if ASYNC:
        assert status == 0
        status = runtime().aclrtSynchronizeStream(current_stream())
    assert status == (507035 if ASYNC else 361001)
    message = recent_error()
    assert "[GmBounds]" in message
    assert "Remedy:" in message
    assert runtime().aclrtSynchronizeStream(current_stream()) == 0
