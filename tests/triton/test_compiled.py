"""Triton's compiler takes the kernels for the GPUs that they are made for. Nothing runs; no GPU is needed."""

from __future__ import annotations

import importlib.util

import pytest

from tests.cases import CASES, SAMPLED_CASES
from tests.cpu.native import operator_arguments
from tests.helpers import make_inputs
from tests.interpreter import is_interpreting
from tests.tiers import full
from toptheta_npu.fallback import Arguments

pytestmark = pytest.mark.skipif(
    is_interpreting() or not importlib.util.find_spec("triton"), reason="needs Triton, and its compiler"
)
#: Of a program on a GeForce card, the smallest of those that take bfloat16.
_SHARED_BYTES = 99 * 1024
_MORE = ("paged-4d", "d512", "g16-mqa-post", "sink-nothing-g1", "sampled-f32", "sampled-d512", "sampled-int8-channel",
         "sampled-paged-3d")  # fmt: skip
#: What goes through K, or a sample of it, before the test.
_FIRST = {"pre_softmax": set(), "post_softmax": {"score"}, "sampled_softmax": {"sampled_lse"}}


@pytest.mark.parametrize("capability", [90, *(pytest.param(number, marks=full) for number in (80, 100, 120))])
@pytest.mark.parametrize(
    "case_id",
    [
        "ragged",
        "post-bf16-mixed",
        "int8-f32-channel",
        "int8-key-bf16-token-g7",
        "sampled-f16-g4",
        *(pytest.param(name, marks=full) for name in _MORE),
    ],
)
def test_kernels_compile(case_id: str, capability: int) -> None:
    from tests.triton.compiled import compiling
    from toptheta_npu.triton import operators

    inputs = make_inputs(next(case for case in (*CASES, *SAMPLED_CASES) if case.id == case_id))
    with compiling(capability) as kernels:
        operators.incremental_attention_with_stats(Arguments(**operator_arguments(inputs)))
    assert {kernel.name for kernel in kernels} == {"attend", "join", "count_value_rows", *_FIRST[inputs.case.placement]}
    assert all(kernel.metadata.shared <= _SHARED_BYTES and kernel.asm["cubin"] for kernel in kernels)
