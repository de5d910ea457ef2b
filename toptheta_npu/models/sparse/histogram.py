"""Counts how often numbers occurred, in memory that grows only with the largest number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Histogram:
    """How often each number from 0 on occurred.

    Attributes:
        counts: int64 [numbers]; numbers beyond the end did not occur.

    Example:
        >>> histogram = Histogram.of(torch.tensor([3, 3, 5]))
        >>> histogram.items()
        [(3, 2), (5, 1)]
        >>> histogram.percentile(0.5), (histogram + histogram).total
        (3, 6)
    """

    counts: Tensor

    @classmethod
    def of(cls, numbers: Tensor) -> Histogram:
        """Count integers from 0 on, in any shape."""
        return cls(torch.bincount(numbers.flatten().long()))

    @classmethod
    def empty(cls) -> Histogram:
        """Make a histogram of nothing."""
        return cls(torch.zeros(0, dtype=torch.long, device="cpu"))

    @property
    def total(self) -> int:
        """How many numbers there were."""
        return int(self.counts.sum())

    def items(self) -> list[tuple[int, int]]:
        """List the numbers that occurred, and how often."""
        return [(number, int(self.counts[number])) for number in self.counts.nonzero()[:, 0].tolist()]

    def percentile(self, share: float) -> int:
        """Find the number that a fraction ``share`` of all numbers does not exceed, by rank; 0 if there were none."""
        rank = max(1, round(share * self.total))
        reached = (self.counts.cumsum(0) >= rank).nonzero()
        return int(reached[0]) if len(reached) else 0

    def __add__(self, other: Histogram) -> Histogram:
        short, long = sorted((self.counts, other.counts), key=len)
        counts = long.clone()
        counts[: len(short)] += short
        return Histogram(counts)
