"""What a GGUF file holds: its settings and the places of its tensors; the weights themselves stay unread.

Every length is checked against the size of the file before anything is read or allocated, since a damaged one can ask
for gigabytes. The form: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..._files import checked_path, file_error, status
from ...errors import TopThetaNotImplementedError, shortened

_WHAT = "a GGUF file"
NO_WAY = "use the model's own checkpoint in place of the GGUF file"
AGAIN = "download it again"
_VERSIONS = (2, 3)
#: More than any vocabulary takes: what stands before the weights.
_LONGEST_HEADER = 1 << 27
_MAX_DIMENSIONS = 4
#: Types of values by their numbers in the file; arrays and texts have lengths of their own.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = "general.alignment"


@dataclass(frozen=True)
class Stored:
    """Where a tensor is in the file, and how.

    Attributes:
        shape: as torch has it, rows first.
        kind: a gguf.GGMLQuantizationType.
        offset, size: in bytes.
    """

    shape: tuple[int, ...]
    kind: Any
    offset: int
    size: int


@dataclass(frozen=True)
class Contents:
    """What a GGUF file holds.

    Attributes:
        file: the file.
        values: its settings: int, float, bool, str, lists of str and arrays of numbers.
        tensors: by their names.
    """

    file: Path
    values: dict[str, Any]
    tensors: dict[str, Stored]


class _DamagedError(Exception):
    """What in the file cannot be."""


def read_contents(path: str | os.PathLike[str]) -> Contents:
    """Read all of a GGUF file but its weights.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: there is no such file, or it is damaged or incomplete.
        TopThetaNotImplementedError: a file of big-endian numbers, of another version than 2 and 3, or with a type of
            weights that the package gguf does not know.
    """
    file = checked_path(path)
    found = status(file, _WHAT)
    if found is None:
        raise file_error(file, _WHAT, "no such file", "correct the path")
    if not stat.S_ISREG(found.st_mode):
        raise file_error(file, _WHAT, "a folder" if stat.S_ISDIR(found.st_mode) else "a device or pipe")
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            values, tensors = _read(file, _Cursor(opened, min(size, _LONGEST_HEADER)), size)
    except OSError as error:
        raise file_error(file, _WHAT, f"one that cannot be read ({error.strerror or error})") from error
    except _DamagedError as error:
        got = f"another file, or one that ends early or is damaged ({error})"
        raise file_error(file, "a whole GGUF file", got, AGAIN) from error
    return Contents(file, values, tensors)


class _Cursor:
    """Reads on from the start of a file, and never beyond ``end``."""

    def __init__(self, file: IO[bytes], end: int) -> None:
        self._file, self._end = file, end
        self.at = 0

    def take(self, size: int, what: str) -> bytes:
        self.check(size, what)
        taken = self._file.read(size)
        if len(taken) != size:
            raise _DamagedError(f"{what} is cut off")
        self.at += size
        return taken

    def check(self, size: int, what: str) -> None:
        if size > self._end - self.at:
            raise _DamagedError(f"{what} would take {size} bytes or more, and {self._end - self.at} are there")

    def number(self, code: str, what: str) -> int:
        found: int = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]
        return found

    def text(self, what: str) -> str:
        taken = self.take(self.number("Q", what), what)
        try:
            return taken.decode()
        except UnicodeDecodeError as error:
            raise _DamagedError(f"{what} is not UTF-8") from error

    def value(self, what: str) -> Any:
        kind = self.number("I", what)
        if kind == _TEXT:
            return self.text(what)
        if kind == _ARRAY:
            return self._array(what)
        return self._numbers(kind, 1, what)[0].item()

    def _array(self, what: str) -> Any:
        kind, length = self.number("I", what), self.number("Q", what)
        if kind != _TEXT:
            return self._numbers(kind, length, what)
        # each has a length of 8 bytes before it
        self.check(8 * length, what)
        return [self.text(what) for _ in range(length)]

    def _numbers(self, kind: int, length: int, what: str) -> Any:
        if kind not in _NUMBERS:
            raise _DamagedError(f"{what} is of the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(length * dtype.itemsize, what), dtype)


def _read(file: Path, cursor: _Cursor, size: int) -> tuple[dict[str, Any], dict[str, Stored]]:
    if (magic := cursor.take(4, "its mark")) != b"GGUF":
        raise _DamagedError(f"it begins with {magic!r}, not with b'GGUF'")
    version = cursor.number("I", "its version")
    if version and version & 0xFFFF == 0:
        raise TopThetaNotImplementedError(str(file), "a little-endian GGUF file", "a big-endian one", NO_WAY)
    if version not in _VERSIONS:
        raise TopThetaNotImplementedError(str(file), "a GGUF file of version 2 or 3", f"version {version}", NO_WAY)
    tensor_count, value_count = (cursor.number("Q", f"the number of {what}") for what in ("tensors", "settings"))
    # a setting takes a length, a type and a byte at least, a tensor a length, its dimensions, a type and a place
    cursor.check(13 * value_count + 32 * tensor_count, f"{value_count} settings and {tensor_count} tensors")
    values: dict[str, Any] = {}
    for _ in range(value_count):
        name = _new(cursor.text("the name of a setting"), values)
        values[name] = cursor.value(shortened(name))
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(tensor_count):
        name = _new(cursor.text("the name of a tensor"), found)
        found[name] = _read_place(cursor, shortened(name))
    alignment = values.get(_ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise _DamagedError(f"{_ALIGNMENT} is {alignment}, and not a power of two")
    start = -(-cursor.at // alignment) * alignment
    tensors = {name: _stored(file, name, *place, start, alignment) for name, place in found.items()}
    _check_places(tensors, size)
    return values, tensors


def _new(name: str, there: dict[str, Any]) -> str:
    if name in there:
        raise _DamagedError(f"{shortened(name)} is there twice")
    return name


def _read_place(cursor: _Cursor, name: str) -> tuple[tuple[int, ...], int, int]:
    dimensions = cursor.number("I", name)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise _DamagedError(f"{name} has {dimensions} dimensions")
    shape = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, name))
    return shape[::-1], cursor.number("I", name), cursor.number("Q", name)


def _stored(
    file: Path, name: str, shape: tuple[int, ...], kind: int, offset: int, start: int, alignment: int
) -> Stored:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        known = GGMLQuantizationType(kind)
        of_block, bytes_of_block = GGML_QUANT_SIZES[known]
    except (ValueError, KeyError) as error:
        expected = "weights of the types that the installed gguf knows"
        got = f"type {kind} of {shortened(name)}"
        raise TopThetaNotImplementedError(str(file), expected, got, "pip install -U gguf") from error
    if 0 in shape or shape[-1] % of_block or offset % alignment:
        raise _DamagedError(f"{shortened(name)} of shape {list(shape)} at {offset} is no tensor of {known.name}")
    return Stored(shape, known, start + offset, prod(shape) // of_block * bytes_of_block)


def _check_places(tensors: dict[str, Stored], size: int) -> None:
    end, before = 0, ""
    for name, stored in sorted(tensors.items(), key=lambda item: item[1].offset):
        if stored.offset < end:
            raise _DamagedError(f"the weights of {shortened(before)} and {shortened(name)} overlap")
        end, before = stored.offset + stored.size, name
        if end > size:
            raise _DamagedError(f"the weights of {shortened(name)} end at byte {end}, and the file at {size}")
