"""The form in which scores are looked at: rows of one layer in blocks, on whatever device they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from .row_statistics import take_rows

# Elements of one block, which bounds the scratch of whoever looks at it.
_SCORES_PER_BLOCK = 1 << 20


class ScoreBlocks(Protocol):
    """The scores of rows of one layer, as often as they are asked for.

    Attributes:
        lengths: int64 [rows], the keys of each row, on the CPU.
        ranked: float32 [Hq, rows, K], if it is known: the rows' (k+1)-th largest scores, for every effective k of the
            layer in ascending order.
        device: where the scores are.
    """

    lengths: Tensor
    ranked: Tensor | None
    device: torch.device

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield which rows, and their scores, float32 [Hq, n, S], -inf where hidden; one block after the other."""

    def longer_than(self, length: int) -> ScoreBlocks:
        """Take the rows of more than ``length`` keys alone."""


class ScoresAtHand:
    """Scores that were computed, as `ScoreBlocks`.

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
