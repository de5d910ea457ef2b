"""No instruction of the kernel compares, subtracts, reduces to a maximum or exponentiates an infinity, whatever the
caller's thresholds and sinks are: the documents do not say what a board makes of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from emulator.ascendc import Kernel
from tests.cases import CASES, TOKEN_CASES, Case
from tests.helpers import make_inputs
from tests.op_kernel.calls import assert_kernel_equals_oracle, call, for_kernel, statistics
from tests.tiers import full
from toptheta_host_model import OperatorRun, kernel_for

_H = "float16"
_OWN_CASES = (
    Case("short-last-chunk", dtype=_H, heads=2, kv_heads=1, head_dim=128, lengths=(2000, 40), theta="mixed"),
    Case("short-last-chunk-cube", dtype=_H, heads=4, kv_heads=1, head_dim=128, lengths=(2000, 40), theta="mixed"),
    Case("short-last-chunk-post", dtype=_H, heads=4, kv_heads=1, lengths=(2000, 40), theta="mixed",
         placement="post_softmax"),
    Case("scale-of-2", dtype=_H, heads=4, kv_heads=1, lengths=(300, 40), theta="mixed", scale=2.0),
    Case("scale-below-0", dtype=_H, heads=4, kv_heads=1, lengths=(300, 40), theta="mixed", scale=-0.125),
    Case("keys-that-few-tokens-see", dtype=_H, heads=4, kv_heads=1, query_tokens=8, lengths=(2000, 8, 0, 30),
         query_lengths=(8, 8, 0, 1), theta="mixed"),
)  # fmt: skip
_BY_ID = {case.id: case for case in map(for_kernel, (*CASES, *TOKEN_CASES)) if case is not None}
_IDS = ("f16-bnsd", "n1-inf-vmc", "sdc-exp-threshold-mixed-vmc", "sink-exp-threshold-vmc", "sink-mixed-f16-g8",
        "sink-post-f16-g12", "sink-dense-n4097", "post-f16-vmc-bsh", "tokens-ragged", "tokens-sink-vmc",
        "tokens-g12-two-head-blocks", "tokens-exp-threshold-vmc", "tokens-none-real")  # fmt: skip
_CASES = (*(_BY_ID[name] for name in _IDS if name in _BY_ID), *_OWN_CASES)
_INT8 = tuple(
    Case(f"int8-{scales}-g{g}", dtype=_H, heads=g, kv_heads=1, lengths=(900, 20, 0), theta="mixed", int8="both",
         scales=scales, sink=g > 1) for scales in ("channel", "token") for g in (1, 2, 4)
)  # fmt: skip


def _kernel_of(query: Tensor, key: Tensor, value: Tensor) -> Kernel:
    return kernel_for(query.dtype, key.dtype, value.dtype, refuse_infinities=True)


def _call(arguments: dict[str, Any], **options: Any) -> OperatorRun:
    kernel = _kernel_of(*(arguments[name] for name in ("query", "key", "value")))
    return call(arguments, kernel=kernel, **options)


def _assert_free_of_infinities(case: Case) -> None:
    inputs = make_inputs(case, for_kernel=True)
    for options in ({}, {"cores": 6}, {"cube": False}):
        if case.query_tokens > 1 and "cube" in options:
            continue  # several tokens always take the cube
        result = _call(inputs.arguments, **options)
        result.run.require_clean()
        assert_kernel_equals_oracle(inputs, statistics(result))


@pytest.mark.parametrize("case", [case for case in _CASES if case.dtype == _H], ids=lambda case: case.id)
def test_no_infinity_passes_through_the_kernel(case: Case) -> None:
    _assert_free_of_infinities(case)


@full
@pytest.mark.parametrize("case", _INT8, ids=lambda case: case.id)
def test_nor_through_that_of_int8_caches(case: Case) -> None:
    _assert_free_of_infinities(case)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("theta", [-torch.inf, torch.inf, 0.0])
def test_nor_where_every_threshold_and_sink_is_one(placement: str, theta: float) -> None:
    inputs = make_inputs(Case("plain", dtype=_H, lengths=(300, 0), placement=placement, sink=True), for_kernel=True)
    arguments = inputs.arguments | {
        "threshold": torch.full_like(inputs.arguments["threshold"], theta),
        "learnable_sink": torch.full_like(inputs.arguments["learnable_sink"], -torch.inf),
    }
    result = _call(arguments)
    result.run.require_clean()
    out, lse, kept, _ = statistics(result)
    everything = theta == -torch.inf or (theta == 0 and placement == "post_softmax")
    if everything or theta == torch.inf:
        assert kept[0].tolist() == [300 if everything else 1] * 4
    assert out.isfinite().all()
    assert lse[0].isfinite().all()
    assert lse[1].tolist() == [-torch.inf] * 4


def test_an_infinity_of_the_caller_in_k_is_found() -> None:
    inputs = make_inputs(_BY_ID["f16-bnsd"], for_kernel=True)
    key = inputs.arguments["key"].clone()
    key[0, 0, 3, 0] = torch.inf
    findings = _call(inputs.arguments | {"key": key}).run.findings
    assert findings
    assert all("holds an infinity" in str(finding) for finding in findings)
