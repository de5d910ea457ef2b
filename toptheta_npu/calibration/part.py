"""Keeps one part of a calibration as a file: what was gathered, of which model, and from which sequences.

The file is safetensors with a JSON header and a checksum, like that of a table; it is never unpickled.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch

from .._checks import check_int
from .._files import file_error, read_bytes, write_atomically
from .._sealed import Fields, Kind, seal, unseal
from ..errors import TopThetaError, TopThetaTypeError, TopThetaValueError, shortened, shown
from ..thresholds import fingerprint
from .arrays import Arrays, take

#: Larger files are not read: 64 GiB, some hundred times what a state for the largest models takes.
MAX_STATE_BYTES = 2**36

#: Fields that the header of every part has.
PART_FIELDS: Fields = {
    "schema": int,
    "settings": dict,
    "fingerprint": str,
    "dtype": str,
    "run": dict,
    "provenance": dict,
    "index": int,
    "count": int,
    "whole": (str, type(None)),
    "total": (int, type(None)),
    "checksum": str,
}
#: What a state that is resumed must be.
OWN_STATE = "the state of this calibration"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Part:
    """Name sequences ``index``, ``index + count``, ... of a calibration; the default is all of them.

    Raises:
        TopThetaTypeError: not ints.
        TopThetaValueError: not ``0 <= index < count``.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        check_int("count", self.count, 1)
        check_int("index", self.index, 0, self.count - 1)


class SeenSequence(NamedTuple):
    """Describe a sequence that was observed: the SHA-256 of its tokens, and their number."""

    digest: bytes
    tokens: int

    @classmethod
    def of(cls, tokens: torch.Tensor) -> SeenSequence:
        """Make the entry for tokens [n] int64."""
        return cls(hashlib.sha256(tokens.cpu().numpy().astype("<i8").tobytes()).digest(), len(tokens))


class WholeSet(NamedTuple):
    """Hold what a finished part knows of all sequences, its own and the others': their digest and number."""

    digest: str
    total: int


@dataclass(kw_only=True)
class PartState(ABC):
    """Hold one part of a calibration; what was gathered is a field of each kind of part.

    Attributes:
        KIND: of its file.
        fingerprint, dtype: of the model.
        run: how the model was run, for the table's provenance.
        provenance: what the sequences are.
        part: which of the sequences belong to it.
        seen: those that were observed, in order.
        whole: of all sequences; None until the part is finished.
    """

    KIND: ClassVar[Kind]

    fingerprint: str
    dtype: str
    run: Mapping[str, str]
    provenance: Mapping[str, str]
    part: Part = field(default_factory=Part)
    seen: list[SeenSequence] = field(default_factory=list)
    whole: WholeSet | None = None

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Give what all parts were asked for."""

    @abstractmethod
    def gathered(self) -> tuple[dict[str, Any], Arrays]:
        """Give the fields of the header that say what was gathered, and its arrays by name."""

    @staticmethod
    @abstractmethod
    def of_gathered(header: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
        """Make the fields of this kind of part of what `gathered` gave; nothing of it is trusted."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add what ``other`` has gathered."""

    def stage(self) -> str:
        """Say how far the work is on the whole, where it has several passes."""
        return ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, atomically.

        Raises:
            TopThetaTypeError: ``path`` is not a path.
            TopThetaValueError: the file cannot be written; what was there is as it was.
        """
        write_atomically(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that :meth:`save` wrote.

        Raises:
            TopThetaTypeError: ``path`` is not a path.
            TopThetaValueError: the file is missing, unreadable, damaged, of another kind or schema.
        """
        return cls.from_bytes(path, read_bytes(path, cls.KIND.name, MAX_STATE_BYTES))

    def to_bytes(self) -> bytes:
        """Make the content of the file."""
        about, arrays = self.gathered()
        digests = np.frombuffer(b"".join(each.digest for each in self.seen), dtype=np.uint8)
        arrays["seen.digests"] = digests.reshape(-1, _DIGEST_BYTES).copy()
        arrays["seen.tokens"] = np.array([each.tokens for each in self.seen], dtype=np.int64)
        header = {
            **about,
            "fingerprint": self.fingerprint,
            "dtype": self.dtype,
            "run": dict(self.run),
            "provenance": dict(self.provenance),
            "index": self.part.index,
            "count": self.part.count,
            "whole": self.whole and self.whole.digest,
            "total": self.whole and self.whole.total,
        }
        return seal(self.KIND, header, {name: torch.from_numpy(array) for name, array in arrays.items()})

    @classmethod
    def from_bytes(cls, name: str | os.PathLike[str], content: bytes) -> Self:
        """Read the state in ``content``; ``name`` is for the error messages."""
        header, tensors = unseal(cls.KIND, name, content)
        try:
            arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
            for mapping in (header["run"], header["provenance"]):
                check_texts("provenance", mapping)
            lengths = take(arrays, "seen.tokens", like=np.zeros(len(tensors["seen.tokens"]), dtype=np.int64))
            like = np.zeros((len(lengths), _DIGEST_BYTES), dtype=np.uint8)
            digests = take(arrays, "seen.digests", like=like)
            return cls(
                **cls.of_gathered(header, arrays),
                fingerprint=header["fingerprint"],
                dtype=header["dtype"],
                run=header["run"],
                provenance=header["provenance"],
                part=Part(header["index"], header["count"]),
                seen=[SeenSequence(*pair) for pair in zip(map(bytes, digests), lengths.tolist(), strict=True)],
                whole=None if header["whole"] is None else WholeSet(header["whole"], int(header["total"])),
            )
        # the checksum fits, but nothing says that this package wrote the file
        except (TopThetaError, TypeError, ValueError, KeyError, OverflowError, MemoryError) as error:
            raise file_error(name, cls.KIND.name, f"other content ({shortened(str(error))})", cls.KIND.again) from error

    def differences(self, other: Self, mine_is: str = "here") -> list[str]:
        """Name what keeps ``other`` from being of the same calibration, each as "name=its value (here mine)"."""
        mine, theirs = self.described(), other.described()
        found = [
            f"{name}={theirs.get(name)} ({mine_is} {mine.get(name)})"
            for name in {**mine, **theirs}
            if mine.get(name) != theirs.get(name)
        ]
        parts = fingerprint.differences(self.fingerprint, other.fingerprint)
        return found + [f"another model (by its {' and '.join(parts)})"] * bool(parts)

    def described(self) -> dict[str, str]:
        """Say what all parts of a calibration share, but for the model and the sequences."""
        values = {name: _shown(value) for name, value in self.settings().items()}
        return {**values, **self.run, "dtype": self.dtype}


def check_texts(name: str, mapping: object) -> None:
    """Raise TopThetaTypeError unless ``mapping`` has texts for texts."""
    if not isinstance(mapping, Mapping) or not all(isinstance(text, str) for pair in mapping.items() for text in pair):
        raise TopThetaTypeError(name, "a mapping of str to str", shown(mapping))


def _shown(value: object) -> str:
    return shown(list(value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def refuse_other(path: object, differences: Sequence[str]) -> None:
    """Raise TopThetaValueError where the state in ``path`` is of another calibration than the one asked for."""
    if differences:
        got = f"one with {', '.join(differences)}"
        remedy = "pass the arguments that it was made with, or delete the file and start anew"
        raise TopThetaValueError(str(path), OWN_STATE, got, remedy)
