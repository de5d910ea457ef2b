"""How often numbers occurred, in memory that does not grow with how many there were."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Bins per octave from twice this number on; below, every number has a bin of its own.
_PER_OCTAVE = 2048


@dataclass(frozen=True, eq=False)
class Histogram:
    """How often numbers from 0 on occurred: each up to 4095, and larger ones in bins of 1/2048 of their octave.

    Attributes:
        counts: int64 [bins]; a bin that is not there is empty.

    Example:
        >>> histogram = Histogram.of(torch.tensor([3, 3, 5, 100_001]))
        >>> histogram.items()
        [(3, 2), (5, 1), (100000, 1)]
        >>> histogram.percentile(0.5), (histogram + histogram).total
        (3, 8)
    """

    counts: Tensor

    @classmethod
    def of(cls, numbers: Tensor) -> Histogram:
        """Count integers from 0 on, in any shape."""
        most = int(numbers.max()) if numbers.numel() else 0
        return cls(torch.bincount(bin_of(numbers.flatten().long(), most), minlength=0).long())

    @classmethod
    def empty(cls) -> Histogram:
        """Make a histogram of nothing."""
        return cls(torch.zeros(0, dtype=torch.long, device="cpu"))

    @property
    def total(self) -> int:
        """How many numbers there were."""
        return int(self.counts.sum())

    def items(self) -> list[tuple[int, int]]:
        """List the bins that hold something, by their least number, and what they hold."""
        bins = self.counts.nonzero()[:, 0].tolist()
        return [(least_of(number), int(self.counts[number])) for number in bins]

    def percentile(self, share: float) -> int:
        """Find the number that ``share`` of all do not exceed, by rank: the least of its bin, 0 if there were none."""
        rank = max(1, round(share * self.total))
        reached = (self.counts.cumsum(0) >= rank).nonzero()
        return least_of(int(reached[0])) if len(reached) else 0

    def __add__(self, other: Histogram) -> Histogram:
        short, long = sorted((self.counts, other.counts), key=len)
        counts = long.clone()
        counts[: len(short)] += short
        return Histogram(counts)


def bin_of(numbers: Tensor, most: int) -> Tensor:
    """Compute the bins of integers from 0 to ``most``, in their shape, where they are and without a look at them."""
    octave = torch.zeros_like(numbers)
    limit = 2 * _PER_OCTAVE
    while limit <= most:
        octave += numbers >= limit
        limit *= 2
    return octave * _PER_OCTAVE + (numbers >> octave)


def bins_up_to(most: int) -> int:
    """Count the bins of the integers from 0 to ``most``."""
    octave = max(0, most.bit_length() - (2 * _PER_OCTAVE - 1).bit_length())
    return octave * _PER_OCTAVE + (most >> octave) + 1


def least_of(number: int) -> int:
    """Compute the least integer of a bin."""
    octave = max(0, number // _PER_OCTAVE - 1)
    return (number - octave * _PER_OCTAVE) << octave
