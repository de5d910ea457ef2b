"""CPU tensors through the Triton kernels, in Triton's interpreter."""

from __future__ import annotations

import functools
import math
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
def _without_repeated_work() -> Iterator[None]:
    """Leave out what the interpreter does anew for each instruction: twice as fast, and no bit differs.

    These are the shape of each result, numpy's type for it, and a second computation of integers in 64 bits, which
    looks for an overflow that a GPU does not look for either.
    """
    from triton.language import core
    from triton.runtime import interpreter

    @functools.cache
    def shape_and_size(*shape: int) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))

    def new_tensor(tensor: Any, handle: Any, of_type: Any) -> None:
        core.base_value.__init__(tensor)
        tensor.handle, tensor.type, tensor.dtype = handle, of_type, of_type.scalar
        tensor.shape, tensor.numel = shape_and_size(*(of_type.shape if of_type.is_block() else ()))

    def is_equal(shape: Any, other: Any) -> Any:
        return core.constexpr(shape is other or shape.values == [core._unwrap_if_constexpr(size) for size in other])

    type_of_values = core._type_for_tuple_values
    type_of_shape = functools.cache(lambda *shape: type_of_values(shape))

    def type_of(values: list[Any], fields: Any = None) -> Any:
        return type_of_shape(*values) if {int}.issuperset(map(type, values)) else type_of_values(values, fields)

    numpy_type_of, numpy_types = interpreter._get_np_dtype, dict[str, Any]()

    def known_numpy_type(of_type: Any) -> Any:
        if of_type.name not in numpy_types:
            numpy_types[of_type.name] = numpy_type_of(of_type)
        return numpy_types[of_type.name]

    unchecked = interpreter.InterpreterOptions(sanitize_overflow=False)
    with (
        mock.patch.object(interpreter, "_get_np_dtype", known_numpy_type),
        mock.patch.object(core.tensor, "__init__", new_tensor),
        mock.patch.object(core.tuple, "__eq__", is_equal),
        mock.patch.object(core, "_type_for_tuple_values", type_of),
        mock.patch.object(interpreter.interpreter_builder, "options", unchecked),
    ):
        yield


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
        _without_repeated_work(),
        toptheta_npu.use_backend("fallback", device="cpu"),
    ):
        yield
    CPU_SELECTOR.choose(CPU_SELECTOR.chosen)  # forgets what was decided
