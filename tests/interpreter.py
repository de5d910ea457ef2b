"""CPU tensors through the Triton kernels, in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import toptheta_npu
from toptheta_npu.cpu.backend import CPU_SELECTOR, checking_values
from toptheta_npu.fallback import IMPLEMENTATIONS


def is_interpreting() -> bool:
    """Whether Triton interprets its kernels, by its own variable; otherwise it compiles them for a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _rounding(convert: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Convert float32 to bfloat16 as devices do, to the nearest or to even; the interpreter cuts digits off."""

    def convert_float(numbers: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(numbers, source, target, mode)
        bits = np.array(numbers, dtype=np.float32, order="C").view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(numbers), bits >> 16 | 0x40, rounded).astype(np.uint16)

    return convert_float


@contextmanager
def _patched_once() -> Iterator[None]:
    """Patch Triton's language for all launches together.

    The interpreter patches it again on every call of a function and forgets to take that back before the launch ends,
    so that each instruction of a loop goes through one more layer than the one before.
    """
    from triton.language import standard
    from triton.runtime import interpreter

    from toptheta_npu.triton import kernel

    scopes = [interpreter._patch_lang(function.fn) for function in (kernel.attend, standard.sum)]
    try:
        with mock.patch.object(interpreter, "_patch_lang", return_value=interpreter._LangPatchScope()):
            yield
    finally:
        for scope in reversed(scopes):
            scope.restore()


@contextmanager
def interpreting() -> Iterator[None]:
    """Let the kernels take the place of the CPU's fallback."""
    from triton.runtime import interpreter

    from toptheta_npu.triton import operators

    kernels = {name: checking_values(getattr(operators, name)) for name in IMPLEMENTATIONS}
    # exponentials and logarithms of -inf are what they should be
    swapped = mock.patch.object(CPU_SELECTOR, "fallbacks", kernels)
    rounding = mock.patch.object(interpreter, "_convert_float", _rounding(interpreter._convert_float))
    with (
        np.errstate(all="ignore"),
        swapped,
        rounding,
        _patched_once(),
        toptheta_npu.use_backend("fallback", device="cpu"),
    ):
        yield
    CPU_SELECTOR.choose(CPU_SELECTOR.chosen)  # forgets what was decided
