"""Cuts documents into windows of one length, and reads only as much as needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from .conventions import Conventions, Tokens
from .sources import Source

#: The most windows to hold out.
MAX_HELD_OUT = 16


@dataclass
class Windows:
    """Windows of tokens.

    Attributes:
        tokens: the windows, int64 [length] each.
        rest: number of tokens that were read but fill no window.
        sources: the sources that were read, at least in part.
    """

    tokens: list[Tensor] = field(default_factory=list)
    rest: int = 0
    sources: list[Source] = field(default_factory=list)


def digest_of(windows: Iterable[Tensor]) -> str:
    """Compute the SHA-256 of windows of tokens, in this order."""
    digest = hashlib.sha256()
    for window in windows:
        digest.update(window.numpy().astype("<i4").tobytes())
    return digest.hexdigest()


class _Packer:
    """Joins tokens and cuts them into runs of one size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: list[Tokens] = []
        self.count = 0

    def add(self, tokens: Tokens) -> None:
        self._held.append(tokens)
        self.count += len(tokens)

    def full(self) -> Iterator[Tokens]:
        """Yield the full runs, which are then gone."""
        if self.count < self.size:
            return
        joined = np.concatenate(self._held)
        whole = len(joined) - len(joined) % self.size
        # set beforehand: whoever iterates may stop anywhere, and goes on with the next
        self._held, self.count = [joined[whole:]], len(joined) - whole
        yield from joined[:whole].reshape(-1, self.size)

    def rest(self) -> Tokens:
        return np.concatenate(self._held) if self._held else np.empty(0, dtype=np.int32)


def collect_windows(
    sources: Sequence[Source],
    conventions: Conventions,
    length: int,
    most: int | None,
    progress: Callable[[int], None] | None = None,
) -> Windows:
    """Collect windows of ``length`` tokens from the documents of ``sources``.

    The documents of a source are joined and cut. The ends of sources are joined, too. With ``most``, sources take
    turns: the first window of every source, then the second of every source, and so on. So even a few windows cover
    many files. Nothing is random: the same files give the same windows. A text file is tokenised in pieces of about
    128 KiB, and only as many as the windows need.

    Args:
        sources: sources to read.
        conventions: conventions of the tokenizer.
        length: tokens per window, at least 2.
        most: maximum number of windows; None: all, one source after the other.
        progress: called after each window with the number of windows.

    Raises:
        TopThetaTypeError, TopThetaValueError: a source cannot be read, or does not hold text.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> from toptheta_npu.texts import StoredText
        >>> texts = [StoredText("a", "import os\\n" * 20), StoredText("b", "print(1)\\n" * 20)]
        >>> len(collect_windows(texts, Conventions.of(load_tiny_llama()[1]), 16, most=3).tokens)
        3
    """
    windows = Windows()
    rests = _Packer(conventions.body(length))
    streams = (_stream(source, conventions, rests, windows.sources) for source in sources)
    bodies = chain.from_iterable(streams) if most is None else _dealt(streams)
    for body in bodies if most != 0 else ():
        windows.tokens.append(torch.from_numpy(conventions.window(body).astype(np.int64)))
        if progress is not None:
            progress(len(windows.tokens))
        if len(windows.tokens) == most:
            break
    windows.rest = rests.count
    return windows


def held_out_count(windows: int) -> int:
    """Compute how many windows to hold out of ``windows``, or besides them: one in ten, at least one, at most 16.

    Example:
        >>> held_out_count(64), held_out_count(3), held_out_count(1000)
        (6, 1, 16)
    """
    return min(MAX_HELD_OUT, max(1, windows // 10))


def held_out_places(windows: int, count: int) -> list[int]:
    """Choose which ``count`` of the windows to hold out, evenly spread.

    Example:
        >>> held_out_places(30, 3)
        [5, 15, 25]
    """
    return [(2 * index + 1) * windows // (2 * count) for index in range(count)]


def _stream(source: Source, conventions: Conventions, rests: _Packer, read: list[Source]) -> Iterator[Tokens]:
    """Yield full runs of one source. The rest at its end joins the rests of others, which may fill runs too."""
    read.append(source)
    packer = _Packer(rests.size)
    for piece in source.pieces():
        packer.add(conventions.tokens(piece.text, piece.ends))
        yield from packer.full()
    rests.add(packer.rest())
    yield from rests.full()


def _dealt(streams: Iterable[Iterator[Tokens]]) -> Iterator[Tokens]:
    """Yield one item of every stream in turn. No stream starts before its first turn."""
    current = streams
    while current:
        going_on = []
        for stream in current:
            for run in stream:
                yield run
                going_on.append(stream)
                break
        current = going_on
