"""Sequences with drafts to verify: one call of the operator reads each of them once for all its new tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .page_sums import NewRows


@dataclass(frozen=True, eq=False)
class DraftRows:
    """The S sequences of a step that follow the thresholds, of which some have several new tokens.

    Attributes:
        tokens: int64 [R], these tokens, one sequence after the other.
        new: what the step has written, each of these tokens as the only new one of a sequence that ends with it.
        lengths: int [S], the keys of the sequences, all new tokens included.
        block_table: int32 [S, blocks].
        counts: int64 [S], their new tokens.
        most: Sq, the most of one.
        first: int64 [S], the first row of each sequence among the R.

    Example:
        >>> starts, lengths = torch.tensor([0, 1, 4]), torch.tensor([9, 20])
        >>> rows = DraftRows.of(starts, lengths, torch.zeros(2, 2, dtype=torch.int32), np.array([0, 1]))
        >>> rows.tokens.tolist(), rows.new.decoding_lengths.tolist(), rows.counts.tolist()
        ([0, 1, 2, 3], [9, 18, 19, 20], [1, 3])
        >>> rows.padded(torch.tensor([5, 6, 7, 8])).tolist()
        [[5, 0, 0], [6, 7, 8]]
    """

    tokens: Tensor
    new: NewRows
    lengths: Tensor
    block_table: Tensor
    counts: Tensor
    most: int
    first: Tensor
    _places: Tensor

    @classmethod
    def of(cls, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, chosen: np.ndarray) -> DraftRows:
        """Find the rows of the sequences ``chosen`` [S] of a step on a CPU; the rest as `Step.of` takes it."""
        starts, lengths = query_start_loc.numpy().astype(np.int64), seq_lens.numpy()
        all_counts = np.diff(starts)
        counts = all_counts[chosen]
        first = counts.cumsum() - counts
        order = np.arange(counts.sum()) - first.repeat(counts)
        # each token a sequence of its own
        pieces = np.ones_like(all_counts)
        pieces[chosen] = counts
        of = np.arange(len(pieces)).repeat(pieces)
        new_counts, new_lengths = all_counts[of], lengths[of].copy()
        rows = np.isin(of, chosen)
        new_counts[rows] = 1
        new_lengths[rows] += (order - counts.repeat(counts) + 1).astype(lengths.dtype)
        new_starts = np.concatenate([[0], new_counts.cumsum()])
        most = int(counts.max())
        put = torch.from_numpy
        return cls(
            put(starts[chosen].repeat(counts) + order),
            NewRows(block_table[put(of)], put(new_lengths), put(new_starts)),
            seq_lens[put(chosen)], block_table[put(chosen)], put(counts), most, put(first),
            put(np.arange(len(chosen)).repeat(counts) * most + order),
        )  # fmt: skip

    def padded(self, rows: Tensor) -> Tensor:
        """Put what tokens have, [R, ...], in its places: [S, Sq, ...], 0 behind the tokens of a sequence."""
        made = rows.new_zeros((len(self.counts) * self.most, *rows.shape[1:])).index_copy_(0, self._places, rows)
        return made.view(-1, self.most, *rows.shape[1:])

    def taken(self, padded: Tensor) -> Tensor:
        """Take it out again: [S, Sq, ...] to [R, ...]."""
        return padded.flatten(0, 1)[self._places]

    def at_first(self, of_sequences: Tensor) -> Tensor:
        """Give what sequences have, [S, ...], to their first rows, and 0 to the others: [R, ...]."""
        made = of_sequences.new_zeros((len(self.tokens), *of_sequences.shape[1:]))
        return made.index_copy_(0, self.first, of_sequences)
