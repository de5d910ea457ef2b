"""Calls one function of the vendor's library on tensors in the Unified Buffer, and then checks every byte of it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulator.tests.vendor.bitcode import Module
from emulator.tests.vendor.interpreter import Device, Interpreter
from emulator.tests.vendor.replay import IMAGE_BYTES, HostModel

Array = npt.NDArray[Any]
#: The libraries for the two kinds of core.
LIBRARIES = {core: Path(__file__).parents[3] / "build" / "vendor" / f"meta_op.{core}.ll" for core in ("aiv", "aic")}
needs_library = pytest.mark.skipif(
    not all(path.is_file() for path in LIBRARIES.values()),
    reason="no vendor bitcode: make -C emulator test-vendor fetches and disassembles it",
)
#: By the names of the library's functions: the type of the elements, and what the instruction calls it.
TYPES: dict[str, type[Any]] = {"float": np.float32, "half": np.float16, "int32_t": np.int32, "int16_t": np.int16}
SHORT = {"float": "f32", "half": "f16", "int32_t": "s32", "int16_t": "s16"}
#: One element, a whole repeat, tails of several repeats.
SIZES = (1, 64, 200, 517)
_BLOCK = 32
_GAP = 96  # bytes between tensors, so that what is written behind one is seen


@cache
def library(core: str) -> Module:
    """The vendor's functions for a kind of core: aiv or aic."""
    return Module(LIBRARIES[core])


def call(core: str, device: Device, function: str, arguments: Sequence[Tensor | np.generic | int]) -> None:
    """Runs a function of the library by its short name.

    Args:
        core: whose library has it.
        device: what its instructions reach.
        function: its name without the prefix that all of them have.
        arguments: tensors, scalars as bit patterns of their own type, other numbers.
    """
    interpreter = Interpreter(library(core), device)
    values: list[int] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            data = argument.memref()
            values.append(interpreter.place(len(data)))
            interpreter.put(values[-1], data)
        elif isinstance(argument, np.generic):
            values.append(int.from_bytes(argument.tobytes(), "little"))
        else:
            values.append(argument)
    interpreter.run(f"_mlir_ciface_{function}", *values)


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies.

    Attributes:
        memory: local, the Unified Buffer, or global.
    """

    memory: str
    address: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, image: Array) -> Array:
        """The tensor's elements in an image, without a copy."""
        buffer = np.frombuffer(image.data, self.dtype, (len(image) - self.address) // self.dtype.itemsize, self.address)
        steps = [stride * self.dtype.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(buffer, self.shape, steps)

    def memref(self) -> bytes:
        """As the compiler hands a tensor over: two pointers, offset, sizes, strides."""
        words = (self.address, self.address, 0, *self.shape, *self.strides)
        return struct.pack(f"<{len(words)}q", *words)


def numbers(dtype: type[Any], *shape: int, seed: int = 1) -> Array:
    """Whole numbers, of which every type has the sums and products."""
    return np.random.default_rng(seed).integers(-40, 40, shape).astype(dtype)


def part(tensor: Tensor, size: int) -> Tensor:
    """The first elements of a tensor."""
    return replace(tensor, shape=(size,))


class Bench:
    """A Unified Buffer and a global memory full of noise, the tensors in it, and the function's call."""

    def __init__(self) -> None:
        noise = np.random.default_rng(7)
        self._images = {memory: noise.integers(0, 256, IMAGE_BYTES, np.uint8) for memory in ("local", "global")}
        self._host = HostModel(self._images["local"], self._images["global"])
        self._next = dict.fromkeys(self._images, _GAP)
        self._free = {memory: np.zeros(IMAGE_BYTES, bool) for memory in self._images}

    @property
    def intrinsics(self) -> set[str]:
        """The vector instructions that ran."""
        return set(self._host.intrinsics)

    def tensor(self, values: Array, row: int | None = None, memory: str = "local") -> Tensor:
        """Places a tensor.

        Args:
            values: its contents.
            row: elements from one row to the next, if there are gaps between them.
            memory: local or global.
        """
        strides = [values.strides[axis] // values.itemsize for axis in range(values.ndim)]
        if row is not None:
            strides[0] = row
        end = sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True)) + 1
        tensor = Tensor(memory, self._next[memory], values.dtype, values.shape, tuple(strides))
        self._next[memory] += -(-end * values.itemsize // _BLOCK) * _BLOCK + _GAP
        assert self._next[memory] <= IMAGE_BYTES
        tensor.view(self._images[memory])[...] = values
        return tensor

    def empty(self, dtype: Any, *shape: int, row: int | None = None, memory: str = "local") -> Tensor:
        """Places a tensor for a result, full of noise."""
        noise = np.random.default_rng(8).integers(1, 100, shape).astype(dtype)
        return self.tensor(noise, row, memory)

    def scratch(self, dtype: Any, size: int) -> Tensor:
        """Places a tensor for intermediate results; what is left in it does not count."""
        tensor = self.empty(dtype, size)
        self.leave_open(tensor, 0, size)
        return tensor

    def leave_open(self, tensor: Tensor, first: int, count: int) -> None:
        """Elements of a result that the instruction may write or not, from `first` on."""
        start = tensor.address + first * tensor.dtype.itemsize
        self._free[tensor.memory][start : start + count * tensor.dtype.itemsize] = True

    def call(self, function: str, *arguments: Tensor | np.generic | int) -> None:
        """Runs a vector function."""
        call("aiv", self._host, function, arguments)

    def check(self, results: Sequence[tuple[Tensor, Array]], rtol: float = 0.0) -> None:
        """Finishes, and compares both memories.

        Args:
            results: tensors and what they must hold; nothing else may have changed.
            rtol: how far a result may be off, for functions whose last bit is the host's.
        """
        before = {memory: image.copy() for memory, image in self._images.items()}
        self._host.finish()
        for tensor, expected in results:
            got = tensor.view(self._images[tensor.memory])
            if rtol:
                np.testing.assert_allclose(got, expected, rtol=rtol)
                expected = got
            np.testing.assert_array_equal(got, expected)
            tensor.view(before[tensor.memory])[...] = expected
        for memory, image in self._images.items():
            changed = np.flatnonzero((before[memory] != image) & ~self._free[memory])
            assert changed.size == 0, f"{memory} bytes that the function must leave changed: {changed[:8]}"
