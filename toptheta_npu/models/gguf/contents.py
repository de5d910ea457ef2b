"""What a GGUF file holds: its settings and the places of its tensors; the weights themselves stay unread.

The package gguf reads the same, in ten times as long. The form:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..._files import checked_path, file_error, status
from ...errors import TopThetaNotImplementedError, shortened

NO_WAY = "use the model's own checkpoint in place of the GGUF file"
AGAIN = "download it again"
_VERSIONS = (2, 3)
#: Types of values by their numbers in the file; arrays and texts have lengths of their own.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9


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


def read_contents(path: str | os.PathLike[str]) -> Contents:
    """Read all of a GGUF file but its weights.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: there is no such file, or it is damaged or incomplete.
        TopThetaNotImplementedError: a file of another version than 2 and 3, or with a type of weights that the package
            gguf does not know.
    """
    file = checked_path(path)
    if status(file, "a GGUF file") is None:
        raise file_error(file, "a GGUF file", "no such file", "correct the path")
    try:
        with file.open("rb") as opened:
            return _read(file, _Cursor(opened))
    except OSError as error:
        raise file_error(file, "a GGUF file", f"one that cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, ZeroDivisionError) as error:
        got = f"another file, or one that ends early or is damaged ({error})"
        raise file_error(file, "a whole GGUF file", got, AGAIN) from error


class _Cursor:
    """Reads on from the start of a file; a damaged length may ask for gigabytes, and gets a ValueError."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.at, self.size = 0, os.fstat(file.fileno()).st_size

    def take(self, size: int) -> bytes:
        if size > self.size - self.at:
            raise ValueError(f"{size} bytes from byte {self.at} on, of {self.size}")
        self.at += size
        return self._file.read(size)

    def numbers(self, dtype: str, count: int) -> np.ndarray:
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype)

    def number(self, dtype: str) -> Any:
        return self.numbers(dtype, 1)[0].item()

    def text(self) -> str:
        return self.take(self.number("<u8")).decode()

    def value(self) -> Any:
        kind = self.number("<u4")
        if kind != _ARRAY:
            return self.text() if kind == _TEXT else self.number(_NUMBERS[kind])
        kind, length = self.number("<u4"), self.number("<u8")
        return [self.text() for _ in range(length)] if kind == _TEXT else self.numbers(_NUMBERS[kind], length)


def _read(file: Path, cursor: _Cursor) -> Contents:
    if (magic := cursor.take(4)) != b"GGUF":
        raise ValueError(f"it begins with {magic!r}, not with b'GGUF'")
    version = cursor.number("<u4")
    if version not in _VERSIONS:  # one of another byte order has a version of millions
        raise TopThetaNotImplementedError(str(file), "a GGUF file of version 2 or 3", f"version {version}", NO_WAY)
    tensor_count, value_count = cursor.number("<u8"), cursor.number("<u8")
    values = {cursor.text(): cursor.value() for _ in range(value_count)}
    places = {cursor.text(): _read_place(cursor) for _ in range(tensor_count)}
    alignment = int(values.get("general.alignment", 32))
    start = -(-cursor.at // alignment) * alignment
    tensors = {name: _stored(file, name, place, start) for name, place in places.items()}
    for name, stored in tensors.items():
        if stored.offset + stored.size > cursor.size:
            raise ValueError(f"the weights of {shortened(name)} end after it")
    return Contents(file, values, tensors)


def _read_place(cursor: _Cursor) -> tuple[tuple[int, ...], int, int]:
    """Read the shape of a tensor, the number of its type, and where it lies."""
    shape = cursor.numbers("<u8", cursor.number("<u4")).tolist()
    return tuple(reversed(shape)), cursor.number("<u4"), cursor.number("<u8")


def _stored(file: Path, name: str, place: tuple[tuple[int, ...], int, int], start: int) -> Stored:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    shape, kind, offset = place
    try:
        known = GGMLQuantizationType(kind)
        of_block, bytes_of_block = GGML_QUANT_SIZES[known]
    except (ValueError, KeyError) as error:
        expected = "weights of the types that the installed gguf knows"
        got = f"type {kind} of {shortened(name)}"
        raise TopThetaNotImplementedError(str(file), expected, got, "pip install -U gguf") from error
    return Stored(shape, known, start + offset, prod(shape) // of_block * bytes_of_block)
