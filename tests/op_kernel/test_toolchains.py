"""The kernel compiled by another compiler, and with the sanitizers, does the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from emulator.ascendc import sanitizer_environment
from tests.cases import Case
from tests.helpers import make_inputs
from tests.op_kernel.calls import call, statistics
from tests.tiers import full, long
from toptheta_host_model import WITHOUT_TILING_POINTERS, kernel_for

pytestmark = full

_HERE = Path(__file__).resolve().parent
_POST = {"placement": "post_softmax"}
_CASES = (
    Case("split", dtype="float16", heads=2, kv_heads=1, head_dim=128, lengths=(1100, 0, 40), vmc=True),
    Case("head-blocks", dtype="bfloat16", heads=9, kv_heads=1, lengths=(300,), theta="mixed"),
    Case("cube", dtype="float16", heads=4, kv_heads=1, head_dim=64, lengths=(1300, 0, 90), vmc=True),
    Case("post", dtype="float16", heads=2, kv_heads=2, lengths=(1900,), **_POST),
    Case("paged", dtype="bfloat16", paged="3d", block_size=16, lengths=(700, 33)),
)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++ on this machine")
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.id)
def test_clang_gives_the_same_bits(case: Case) -> None:
    inputs = make_inputs(case)
    expected = call(inputs.arguments)
    result = call(inputs.arguments, kernel=kernel_for(case.torch_dtype, compiler="clang++"))
    result.run.require_clean()
    for got, wanted in zip(statistics(result), statistics(expected), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.id)
def test_tiling_data_may_come_either_way(case: Case) -> None:
    """By pointer, or by the DMA that the build of CANN 8.1 makes of GET_TILING_DATA."""
    inputs = make_inputs(case)
    expected = call(inputs.arguments)
    result = call(inputs.arguments, kernel=kernel_for(case.torch_dtype, flags=[WITHOUT_TILING_POINTERS]))
    assert result.run.require_clean().timeline().cycles > expected.run.timeline().cycles
    for got, wanted in zip(statistics(result), statistics(expected), strict=True):
        assert torch.equal(got, wanted)


@long
def test_sanitizers_have_nothing_to_report() -> None:
    """In a process of its own, since the runtime of AddressSanitizer has to be there from the start."""
    environment = {**os.environ, **sanitizer_environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(_HERE / "sanitized.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [case.id for case in _CASES]
