"""Replays the instructions that a vendor's function asks for on the host model, by the operands that come packed."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.ascendc import Argument, Kernel, run_kernel

IMAGE_BYTES = 96 * 1024
_KERNEL = Kernel(Path(__file__).parent / "replay.cpp", entry="replay")
_COUNTER_MODE = 56  # bit of the control register
_NO_EFFECT = ("BARRIER", "SET.FLAG.IMM", "WAIT.FLAG.IMM", "SET.MOV.PAD.VAL")  # a barrier follows every instruction

Fields = dict[str, tuple[tuple[int, int], ...]]

# Where an operand lies in the 64-bit word: first bit and bits, low part first.
_LONG_REPEAT = ((32, 8), (52, 4))
_BINARY: Fields = {
    "dst_block": ((0, 8),),
    "src0_block": ((8, 8),),
    "src1_block": ((16, 8),),
    "dst_repeat": ((24, 8),),
    "src0_repeat": ((32, 8),),
    "src1_repeat": ((40, 8),),
    "mode": ((48, 2),),
    "repeat": ((56, 8),),
}
_UNARY: Fields = {
    "dst_block": ((0, 16),),
    "src0_block": ((16, 16),),
    "dst_repeat": _LONG_REPEAT,
    "src0_repeat": ((40, 12),),
    "repeat": ((56, 8),),
}
_TO_BLOCKS: Fields = {"dst_block": ((0, 16),), "dst_repeat": _LONG_REPEAT, "repeat": ((56, 8),)}
_REDUCTION: Fields = {
    "dst_repeat": ((0, 16),),
    "src0_block": ((16, 16),),
    "src0_repeat": ((32, 16),),
    "repeat": ((56, 8),),
}
_GATHER_MASK: Fields = {
    "repeat": ((0, 8), (56, 8)),
    "src0_block": ((8, 8),),
    "mode": ((16, 8),),
    "src0_repeat": ((24, 16),),
    "src1_repeat": ((40, 8),),
}
# Copies: blocks of `src0_block` 32 bytes inside, of so many bytes from and to global memory; the strides are the gaps.
_COPY_INSIDE: Fields = {
    "repeat": ((4, 12),),
    "src0_block": ((16, 16),),
    "src0_repeat": ((32, 16),),
    "dst_repeat": ((48, 16),),
}
# The second word, behind the first, has the gaps.
_COPY_GLOBAL: Fields = {
    "repeat": ((4, 12),),
    "src0_block": ((16, 21),),
    "src0_repeat": ((64, 32),),
    "dst_repeat": ((96, 32),),
}
_GATHER: Fields = {"mode": ((0, 32),), "dst_repeat": _LONG_REPEAT, "repeat": ((56, 8),)}
# By the beginning of a name: the layout, and what the arguments in front of the packed word are.
_LAYOUTS: tuple[tuple[tuple[str, ...], Fields, tuple[str, ...]], ...] = (
    (("MOV.UB.TO.UB.",), _COPY_INSIDE, ("dst", "src0")),
    (("MOV.OUT.TO.UB.ALIGN.", "MOV.UB.TO.OUT.ALIGN."), _COPY_GLOBAL, ("dst", "src0")),
    (("VREDUCEv2.",), _GATHER_MASK, ("dst", "src0", "src1")),
    (("VGATHER.",), _GATHER, ("dst", "src0")),
    (("VBRCB.",), _TO_BLOCKS, ("dst", "src0")),
    (("MOVEV.",), _TO_BLOCKS, ("dst", "scalar")),
    (("VCADD.", "VCGADD.", "VCGMAX.", "VCPADD.", "VCMAX."), _REDUCTION, ("dst", "src0")),
    (("VADDS.", "VMULS.", "VMAXS.", "VMINS.", "VCMPVS."), _UNARY, ("dst", "src0", "scalar")),
    (("VADD.", "VSUB.", "VMUL.", "VDIV.", "VMAX.", "VMIN.", "VAND.", "VOR."), _BINARY, ("dst", "src0", "src1")),
    (("VSEL.",), _BINARY, ("dst", "src0", "src1")),
    (("VEXP.", "VLN.", "VABS.", "VCONV.", "VCOPY."), _UNARY, ("dst", "src0")),
)


class UnknownIntrinsicError(Exception):
    """An intrinsic that the replay does not know; the text has its name."""


@dataclass
class Step:
    """One instruction, in the order of `Step` in replay.cpp."""

    name: int
    dst: int = 0
    src0: int = 0
    src1: int = 0
    scalar: int = 0
    mask_low: int = 0
    mask_high: int = 0
    counter: int = 0
    repeat: int = 0
    dst_block: int = 0
    src0_block: int = 0
    src1_block: int = 0
    dst_repeat: int = 0
    src0_repeat: int = 0
    src1_repeat: int = 0
    mode: int = 0
    selection: int = 0


def unpack(word: int, fields: Fields) -> dict[str, int]:
    """The operands of a packed word."""
    values = {}
    for field, parts in fields.items():
        value = shift = 0
        for first, bits in parts:
            value |= (word >> first) % (1 << bits) << shift
            shift += bits
        values[field] = value
    return values


def hash_of(name: str) -> int:
    """FNV-1a, as `Name` of steps.h."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def decode(name: str, arguments: list[int]) -> Step:
    """An instruction's operands out of the intrinsic's arguments.

    Raises:
        UnknownIntrinsicError: the layout of its operands is not known.
    """
    layout = next((layout for layout in _LAYOUTS if name.startswith(layout[0])), None)
    if layout is None:
        raise UnknownIntrinsicError(name)
    _, fields, front = layout
    step = Step(hash_of(name), **dict(zip(front, arguments, strict=False)))
    word = arguments[len(front)]
    if fields is _COPY_GLOBAL:
        word |= arguments[len(front) + 1] << 64
    elif len(arguments) > len(front) + 1:
        step.mode = arguments[-1]  # the order of value and index
    return replace(step, **unpack(word, fields))


class HostModel:
    """The device of an interpreter: a Unified Buffer, and the instructions that still have to run over it.

    Attributes:
        image: the bytes of the Unified Buffer.
        outside: those of global memory.
        intrinsics: names of all instructions that came.
    """

    def __init__(self, image: npt.NDArray[np.uint8], outside: npt.NDArray[np.uint8]) -> None:
        self.image = image
        self.outside = outside
        self.intrinsics: list[str] = []
        self._steps: list[Step] = []
        self._control = 0
        self._mask = [0, 0]
        self._selection = 0
        self._kept = 0

    def call(self, name: str, arguments: list[int]) -> int:
        """Registers change at once; a vector instruction waits for `finish`."""
        if name == "GET.CTRL":
            return self._control
        if name == "SET.CTRL":
            self._control = arguments[0]
        elif name == "SBITSET0":
            return arguments[0] & ~(1 << arguments[1])
        elif name == "SBITSET1":
            return arguments[0] | 1 << arguments[1]
        elif name == "MOVEMASK":
            self._mask[arguments[0]] = arguments[1]
        elif name == "GET.RSVD.CNT":
            self.finish()
            return self._kept
        elif name == "SET.CMPMASK":
            self._selection = int.from_bytes(self.load(arguments[0], 8), "little")
        elif name not in _NO_EFFECT:
            self._append(name, arguments)
        return 0

    def _append(self, name: str, arguments: list[int]) -> None:
        step = decode(name, arguments)
        step.mask_low, step.mask_high = self._mask
        step.counter = self._control >> _COUNTER_MODE & 1
        step.selection = self._selection
        self.intrinsics.append(name)
        self._steps.append(step)

    def load(self, address: int, size: int) -> bytes:
        """A scalar load, after everything that came before."""
        self.finish()
        return self.image[address : address + size].tobytes()

    def store(self, address: int, data: bytes) -> None:
        """A scalar store, after everything that came before."""
        self.finish()
        self.image[address : address + len(data)] = np.frombuffer(data, np.uint8)

    def finish(self) -> None:
        """Runs what waits."""
        if not self._steps:
            return
        steps: npt.NDArray[Any] = np.array([astuple(step) for step in self._steps], np.uint64)
        count = np.array([len(steps)], np.uint64)
        memories: list[Argument] = [("image", self.image, "inout"), ("outside", self.outside, "inout")]
        kept = np.zeros(4, np.int64)
        run: list[Argument] = [("steps", steps, "in"), ("count", count, "in"), ("kept", kept, "out")]
        run_kernel(_KERNEL, [*memories, *run], blocks=1, checks=False).require_clean()
        self._steps = []
        self._kept = int(kept[0])
