"""What is dense of an int8 cache in the pages of an engine whose own kernels read none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..fallback.antiquant import dequantise
from ..ops import incremental_attention
from .layouts import Pages

#: Sequences with up to as many new tokens are read as they lie, once for each token. For more, rows are multiplied out.
FEW_TOKENS = 8


def dequantise_pages(cache: Pages, pages: Tensor, to: Pages) -> None:
    """Write what some pages of an int8 cache stand for into others.

    Args:
        pages: int64 [P], of the cache.
        to: pages 0 to P - 1 of it are written.
    """
    assert cache.antiquant is not None
    for numbers, scale, rows in zip(cache[:2], cache.antiquant[:2], to[:2], strict=True):
        rows[: len(pages)] = dequantise(numbers[pages], scale[:, None])


def renumbered(block_table: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
    """List the pages of some sequences, int64 [P], and the table of these sequences by their places in that list.

    Args:
        block_table: int32 [B, blocks].
        pages: int64 [B], how many each has.

    Example:
        >>> [each.tolist() for each in renumbered(torch.tensor([[7, 9], [4, -1]]), torch.tensor([2, 1]))]
        [[7, 9, 4], [[0, 1], [2, 0]]]
    """
    has = torch.arange(block_table.shape[1], device=pages.device) < pages[:, None]
    numbers = torch.zeros_like(block_table)
    numbers[has] = torch.arange(int(pages.sum()), dtype=numbers.dtype, device=numbers.device)
    return block_table[has].long(), numbers


def new_tokens(sequences: Tensor, query_start_loc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """List the new tokens of some sequences [P]: the sequence of each, its number in it, and all sequences' counts.

    Example:
        >>> [each.tolist() for each in new_tokens(torch.tensor([1]), torch.tensor([0, 4, 6]))]
        [[1, 1], [0, 1], [4, 2]]
    """
    counts = query_start_loc[1:] - query_start_loc[:-1]
    of = sequences.repeat_interleave(counts[sequences])
    before = counts[sequences].cumsum(0) - counts[sequences]
    return of, torch.arange(len(of), device=of.device) - before.repeat_interleave(counts[sequences]), counts


@dataclass(frozen=True)
class DenseRows:
    """Tokens that attend to all keys up to their own.

    Attributes:
        tokens: int64 [R], of the step.
        lengths: int32 [R], their keys.
        block_table: int32 [R, blocks], the pages of their sequences.
    """

    tokens: Tensor
    lengths: Tensor
    block_table: Tensor

    @classmethod
    def of(cls, sequences: Tensor, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor) -> DenseRows:
        """List the new tokens of some sequences [P], each of which may have several; two arguments are on the CPU.

        Example:
            >>> starts, lengths, table = torch.tensor([0, 4, 6]), torch.tensor([9, 20]), torch.zeros(2, 3)
            >>> rows = DenseRows.of(torch.tensor([1]), starts, lengths, table)
            >>> rows.tokens.tolist(), rows.lengths.tolist()
            ([4, 5], [19, 20])
        """
        of, order, counts = new_tokens(sequences, query_start_loc)
        tokens, behind = query_start_loc[of].long() + order, counts[of] - 1 - order
        of, tokens, behind = (each.to(seq_lens.device) for each in (of, tokens, behind))
        return cls(tokens, (seq_lens[of] - behind).int(), block_table[of])

    def attend(self, query: Tensor, pages: Pages, scale: float, out: Tensor) -> None:
        """Write the rows [T, Hq, D] of these tokens: by the operator, which keeps everything above -inf."""
        assert pages.antiquant is not None
        rows = query[self.tokens]
        theta = rows.new_full(rows.shape[1:2], -torch.inf, dtype=torch.float32)
        result = incremental_attention(
            rows.unsqueeze(2), pages.keys, pages.values, theta,
            actual_seq_lengths=self.lengths, block_table=self.block_table, block_size=pages.keys.shape[2],
            num_key_value_heads=pages.keys.shape[1], scale_value=scale, **pages.antiquant._asdict(),
        )  # fmt: skip
        out[self.tokens] = result.squeeze(2)
