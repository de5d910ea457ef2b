"""Assigns the keys of a growing sequence to ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor

from .._checks import check_int
from .exchange import Exchange


@dataclass(frozen=True)
class Sharding:
    """Distributes keys to the ranks in blocks: key p of a sequence is on rank (p // interleave) % world_size.

    Each rank holds its keys in order. No two ranks ever differ by more than ``interleave`` keys, for sequences of any
    length. With an ``interleave`` of at least length / world_size each rank holds one run of keys.

    Attributes:
        rank, world_size: rank of this process, and number of ranks.
        interleave: keys per block.

    Raises:
        TopThetaTypeError, TopThetaValueError: a number is not an int, or out of its range.

    Example:
        >>> ranks = [Sharding(rank, 3, interleave=2) for rank in range(3)]
        >>> [ranks[rank].positions(0, 9).tolist() for rank in range(3)]
        [[0, 1, 6, 7], [2, 3, 8], [4, 5]]
        >>> [ranks[rank].held(9) for rank in range(3)]
        [4, 3, 2]
    """

    rank: int
    world_size: int
    interleave: int

    def __post_init__(self) -> None:
        check_int("interleave", self.interleave, 1, 2**31 - 1)
        check_int("world_size", self.world_size, 1, 2**31 - 1)
        check_int("rank", self.rank, 0, self.world_size - 1)

    @classmethod
    def of_group(cls, interleave: int, group: dist.ProcessGroup | None = None) -> Sharding:
        """Make the sharding over the ranks of a process group; None: the default one.

        Raises:
            TopThetaTypeError, TopThetaValueError: the group does not exist; as the class.
        """
        exchange = Exchange(group)
        return cls(exchange.rank, exchange.world_size, interleave)

    @overload
    def held(self, length: int) -> int: ...

    @overload
    def held(self, length: Tensor) -> Tensor: ...

    def held(self, length: Any) -> Any:
        """Count how many of the first ``length`` keys of a sequence this rank holds; an int, or an integer tensor."""
        if not isinstance(length, Tensor):
            return int(self.held(torch.tensor(length, dtype=torch.int64, device="cpu")))
        every = self.interleave * self.world_size
        in_last_round = length % every - self.rank * self.interleave
        return length // every * self.interleave + in_last_round.clamp(0, self.interleave)

    def positions(self, first: int, last: int) -> Tensor:
        """List the keys ``first`` to ``last`` - 1 of a sequence that this rank holds: int64, ascending."""
        keys = torch.arange(first, last, device="cpu")
        return keys[keys // self.interleave % self.world_size == self.rank]
