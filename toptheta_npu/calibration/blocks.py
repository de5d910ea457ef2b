"""The form of scores for calibration: rows of one layer in blocks, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from .row_statistics import take_rows

# Elements of one block, which bounds the scratch memory of its readers.
_SCORES_PER_BLOCK = 1 << 20


class ScoreBlocks(Protocol):
    """The scores of rows of one layer. They may be iterated over several times.

    Attributes:
        lengths: int64 [rows], the number of keys of each row, on the CPU.
        ranked: float32 [Hq, rows, K], if known: the rows' (k+1)-th largest scores, for every effective k of the
            layer in ascending order.
        device: device of the scores.
    """

    lengths: Tensor
    ranked: Tensor | None
    device: torch.device

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield block by block the places of its rows, and their scores, float32 [Hq, n, S], -inf where hidden."""

    def longer_than(self, length: int) -> ScoreBlocks:
        """Take the rows of more than ``length`` keys alone."""


class ScoresAtHand:
    """Scores in memory, as `ScoreBlocks`.

    Args:
        scores: float32 [Hq, rows, S], -inf where hidden.
        lengths, ranked: as in `ScoreBlocks`.
    """

    def __init__(self, scores: Tensor, lengths: Tensor, ranked: Tensor | None = None) -> None:
        self.lengths, self.ranked, self.device = lengths, ranked, scores.device
        self._scores = scores

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        heads, rows, width = self._scores.shape
        step = max(1, _SCORES_PER_BLOCK // max(1, heads * width))
        for start in range(0, rows, step):
            yield slice(start, start + step), self._scores[:, start : start + step]

    def longer_than(self, length: int) -> ScoresAtHand:
        """Take the rows of more than ``length`` keys alone."""
        long = (self.lengths > length).nonzero().flatten()
        ranked = None if self.ranked is None else take_rows(self.ranked, long)
        return ScoresAtHand(take_rows(self._scores, long), self.lengths[long], ranked)
