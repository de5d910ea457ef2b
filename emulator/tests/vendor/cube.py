"""Replays what the vendor's functions ask of a cube core: from rows in global memory to rows of a product there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from emulator.ascendc import Argument, Kernel, run_kernel
from emulator.tests.vendor.bitcode import UnreadableError
from emulator.tests.vendor.replay import Fields, UnknownIntrinsicError, hash_of, unpack

_KERNEL = Kernel(Path(__file__).parent / "cube.cpp", entry="replay_cube")
_NO_EFFECT = ("BARRIER", "SET.FLAG.REG", "WAIT.FLAG.REG", "SET.QUANT.PRE", "SET.ND.PARA", "SET.FMATRIX")

# In the order of the parameter structures of the public header, of those fields that cube.cpp hands over.
_ND2NZ: Fields = {
    "ndNum": ((4, 12),),
    "nValue": ((16, 16),),
    "dValue": ((32, 16),),
    "srcNdMatrixStride": ((48, 16),),
    "srcDValue": ((64, 16),),
    "dstNzC0Stride": ((80, 16),),
    "dstNzNStride": ((96, 16),),
    "dstNzMatrixStride": ((112, 16),),
}
_LOAD_2D: Fields = {
    "startIndex": ((0, 16),),
    "repeatTimes": ((16, 8),),
    "srcStride": ((24, 16),),
    "dstGap": ((44, 16),),
}
# Of the three-dimensional form only what 16 rows need, whose fractals stay in their order.
_LOAD_3D: Fields = {"columns": ((0, 16),), "rows": ((16, 16),), "firstColumn": ((32, 16),), "firstRow": ((48, 16),)}
_MAD: Fields = {"m": ((0, 12),), "k": ((12, 12),), "n": ((24, 12),), "cmatrixInitVal": ((63, 1),)}
_FIXPIPE: Fields = {"nSize": ((4, 12),), "mSize": ((16, 16),), "dstStride": ((32, 32),), "srcStride": ((64, 16),)}
# By the beginning of a name: the layout, and how many addresses stand in front of the packed words.
_LAYOUTS: tuple[tuple[str, Fields, int], ...] = (
    ("MOV.OUT.TO.L1.MULTI.ND2NZ.", _ND2NZ, 2),
    ("LOAD.L1.TO.L0A.2D.V220.", _LOAD_2D, 2),
    ("LOAD.L1.TO.L0B.2D.V220.", _LOAD_2D, 2),
    ("LOAD.L1.TO.L0A.3DV2.", _LOAD_3D, 2),
    ("MAD.", _MAD, 3),
    ("FIX.L0C.TO.OUT.", _FIXPIPE, 2),
)
_FIELDS = 12  # of `Step` in cube.cpp


class CubeCore:
    """The device of an interpreter, with one global memory for operands and result.

    Attributes:
        outside: the bytes of global memory.
        intrinsics: names of all instructions that came.
    """

    def __init__(self, outside: npt.NDArray[np.uint8]) -> None:
        self.outside = outside
        self.intrinsics: list[str] = []
        self._steps: list[list[int]] = []

    def call(self, name: str, arguments: list[int]) -> int:
        """An instruction waits for `finish`."""
        if name.startswith(_NO_EFFECT):
            return 0
        layout = next((layout for layout in _LAYOUTS if name.startswith(layout[0])), None)
        if layout is None:
            raise UnknownIntrinsicError(name)
        _, fields, addresses = layout
        words = arguments[addresses:]
        values = unpack(words[0] | (words[1] << 64 if len(words) > 1 else 0), fields)
        if fields is _LOAD_3D and (values["rows"] != 16 or values["firstRow"] or values["firstColumn"]):
            raise UnknownIntrinsicError(f"{name} with {values}")
        step = [hash_of(name), *arguments[:addresses], *[0] * (3 - addresses), *values.values()]
        self.intrinsics.append(name)
        self._steps.append(step + [0] * (_FIELDS - len(step)))
        return 0

    def load(self, address: int, size: int) -> bytes:
        """A cube core has no Unified Buffer."""
        raise UnreadableError(f"{size} bytes of the Unified Buffer at {address:#x} on a cube core")

    def store(self, address: int, data: bytes) -> None:
        """A cube core has no Unified Buffer."""
        raise UnreadableError(f"{len(data)} bytes of the Unified Buffer at {address:#x} on a cube core")

    def finish(self) -> None:
        """Runs what waits."""
        count = np.array([len(self._steps)], np.uint64)
        steps = np.array(self._steps, np.uint64)
        arguments: list[Argument] = [("outside", self.outside, "inout"), ("steps", steps, "in"), ("count", count, "in")]
        # no checks of initialisation: the library multiplies the rest of its last fractals too, and drops the result
        run_kernel(_KERNEL, arguments, blocks=1, checks=False).require_clean()
