"""The size of the kernel's code does not outgrow the figures that are kept."""

from __future__ import annotations

import json

import pytest

from emulator.tests.real_headers import Core
from emulator.tests.real_headers_device import find_clang, needs_device_path
from tests.op_kernel import code_size
from tests.op_kernel.operator_build import COMBINATIONS

_RESULTS = json.loads(code_size.RESULTS.read_text())
_SIZES = {(row["key"], row["core"]): row for row in _RESULTS["instructions"]}
#: How far a size may rise above its figure before somebody has to look at it and renew the figures.
_GROWTH = 1.1
_IR = """
declare void @_Z4vaddv()

define void @entry(ptr %0) {
  %2 = alloca i32, align 4
  call void @llvm.lifetime.start.p0(i64 4, ptr %2)
  br label %3

3:                                                ; preds = %1
  %4 = phi i32 [ 0, %1 ], [ 1, %3 ]
  call void @_Z4vaddv()
  switch i32 %4, label %3 [
    i32 0, label %5
    i32 1, label %5
  ]

5:
  ret void
}
"""


def test_count_holds_what_becomes_an_instruction() -> None:
    """alloca, br, call, switch, ret: neither a phi node, nor a marker, nor the cases of a switch."""
    assert code_size.instructions_in(_IR) == 5
    assert code_size.instructions_in(_IR + _IR.replace("@entry", "@other")) == 10


def test_figures_are_those_of_the_keys_that_the_entry_has() -> None:
    assert list(_SIZES) == code_size.forms()
    assert len(code_size.table(_RESULTS).rows) == len(_SIZES)


@pytest.mark.parametrize("dtypes", COMBINATIONS)
@pytest.mark.parametrize("core", ["vector", "cube"])
def test_keys_without_post_softmax_are_smaller(core: Core, dtypes: str) -> None:
    """Which is why it has keys of its own, 10 behind those of one token; cube cores do not know it."""
    for key in (key for key, kind in _SIZES if kind == core and (key + 10, core) in _SIZES):
        common, post = _SIZES[key, core][dtypes], _SIZES[key + 10, core][dtypes]
        assert common == post if core == "cube" else common < post


@needs_device_path
@pytest.mark.parametrize("dtypes", COMBINATIONS)
@pytest.mark.parametrize(("key", "core"), code_size.forms())
def test_code_does_not_grow_unseen(key: int, core: Core, dtypes: str) -> None:
    figure = _SIZES[key, core][dtypes]
    clang = find_clang()
    assert clang is not None
    if clang.version.split(".")[0] != _RESULTS["clang"].split(".")[0]:
        pytest.skip(f"the figures are of clang {_RESULTS['clang']}, this is {clang.version}")
    size = code_size.size_of(key, core, dtypes)
    assert size <= _GROWTH * figure, "if it has to be: python -m tests.op_kernel.code_size --write"
    assert size >= figure / _GROWTH, "smaller now, so the bound is too: python -m tests.op_kernel.code_size --write"
