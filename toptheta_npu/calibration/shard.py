"""Names the shards of a calibration and the sequences that they have seen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .._checks import check_int
from ..errors import TopThetaTypeError, TopThetaValueError, shown

#: What a state that is resumed must be.
OWN_STATE = "the state of this calibration"


@dataclass(frozen=True)
class Shard:
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

    def places(self, total: int) -> range:
        """Give the places of its sequences among all ``total``.

        Example:
            >>> list(Shard(1, 3).places(8))
            [1, 4, 7]
        """
        return range(self.index, total, self.count)


class SeenSequence(NamedTuple):
    """Describe a sequence that was observed: the SHA-256 of its tokens, and their number."""

    digest: bytes
    tokens: int

    @classmethod
    def of(cls, tokens: torch.Tensor) -> SeenSequence:
        """Make the entry for tokens [n] int64."""
        return cls(hashlib.sha256(tokens.cpu().numpy().astype("<i8").tobytes()).digest(), len(tokens))


class WholeSet(NamedTuple):
    """Hold what a shard knows of all sequences, its own and the others': their digest and number."""

    digest: str
    total: int

    @classmethod
    def of(cls, sequences: Sequence[SeenSequence]) -> WholeSet:
        """Make the entry for all sequences, in order."""
        return cls(hashlib.sha256(b"".join(each.digest for each in sequences)).hexdigest(), len(sequences))


def check_texts(name: str, mapping: object) -> None:
    """Raise TopThetaTypeError unless ``mapping`` has texts for texts."""
    if not isinstance(mapping, Mapping) or not all(isinstance(text, str) for pair in mapping.items() for text in pair):
        raise TopThetaTypeError(name, "a mapping of str to str", shown(mapping))


def refuse_other(path: object, differences: Sequence[str]) -> None:
    """Raise TopThetaValueError where the state in ``path`` is of another calibration than the one asked for."""
    if differences:
        got = f"one with {', '.join(differences)}"
        remedy = "pass the arguments that it was made with, or delete the file and start anew"
        raise TopThetaValueError(str(path), OWN_STATE, got, remedy)
