"""Sequences with drafts to verify: one call of the operator reads each of them once for all its new tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .page_sums import NewRows


@dataclass(eq=False)
class DraftRows:
    """The S sequences of a step that follow the thresholds, of which some have several new tokens.

    How many these are is known on the host. Lengths and pages may lie on a device, and are not looked at.

    Attributes:
        tokens: int64 [R], these tokens, one sequence after the other.
        most: Sq, the most of one sequence.
        verified: how many tokens are of sequences that have several.
        first: int64 [S], the first row of each sequence among the R.
        lengths: int [S], the keys of the sequences, all new tokens included, as `read` has found them.
        counts: the same of their new tokens: none of a sequence of length 0, which is padding.
        block_table: int32 [S, blocks], the same of their pages.

    Example:
        >>> starts, lengths = torch.tensor([0, 1, 4]), torch.tensor([9, 20])
        >>> table = torch.zeros(2, 2, dtype=torch.int32)
        >>> rows = DraftRows.of(starts, np.array([0, 1]), lengths)
        >>> new = rows.read(lengths, table)
        >>> rows.tokens.tolist(), new.decoding_lengths.tolist(), rows.counts.tolist()
        ([0, 1, 2, 3], [9, 18, 19, 20], [1, 3])
        >>> rows.padded(torch.tensor([5, 6, 7, 8])).tolist()
        [[5, 0, 0], [6, 7, 8]]
    """

    tokens: Tensor
    most: int
    verified: int
    first: Tensor
    _places: Tensor
    _chosen: Tensor
    _counts: Tensor
    _split: SplitSequences
    lengths: Tensor = field(init=False)
    counts: Tensor = field(init=False)
    block_table: Tensor = field(init=False)

    @classmethod
    def of(cls, query_start_loc: Tensor, chosen: np.ndarray, like: Tensor) -> DraftRows:
        """Find the rows of the sequences ``chosen`` [S] of a step.

        Args:
            query_start_loc: as `Step.of` takes it, on the CPU.
            like: has the device and the dtype of the lengths.
        """
        starts = query_start_loc.numpy().astype(np.int64)
        counts = np.diff(starts)[chosen]
        first = counts.cumsum() - counts
        order = np.arange(counts.sum()) - first.repeat(counts)
        most = int(counts.max())
        sequences = np.arange(len(chosen)).repeat(counts)
        tokens, first_rows, places, taken, taken_counts = copy_indices_to_device(
            like.device, starts[chosen].repeat(counts) + order, first, sequences * most + order, chosen, counts
        )
        return cls(
            tokens, most, int(counts[counts > 1].sum()), first_rows, places, taken, taken_counts.to(like.dtype),
            SplitSequences.of(starts, chosen, like),
        )  # fmt: skip

    def read(self, seq_lens: Tensor, block_table: Tensor) -> NewRows:
        """Take lengths and pages of all sequences of the step from where they lie.

        Returns:
            What the step has written, each of the tokens as the only new one of a sequence that ends with it.
        """
        self.lengths, self.block_table = (each.index_select(0, self._chosen) for each in (seq_lens, block_table))
        self.counts = self._counts.minimum(self.lengths)
        return self._split.new_rows(seq_lens, block_table, self.most)

    def padded(self, rows: Tensor) -> Tensor:
        """Put what tokens have, [R, ...], in its places: [S, Sq, ...], 0 behind the tokens of a sequence."""
        places = len(self._chosen) * self.most
        made = rows
        if len(rows) < places:
            made = rows.new_zeros((places, *rows.shape[1:])).index_copy_(0, self._places, rows)
        return made.view(-1, self.most, *rows.shape[1:])

    def taken(self, padded: Tensor) -> Tensor:
        """Take it out again: [S, Sq, ...] to [R, ...]."""
        rows = padded.flatten(0, 1)
        return rows if len(rows) == len(self.tokens) else rows.index_select(0, self._places)

    def at_first(self, of_sequences: Tensor) -> Tensor:
        """Give what sequences have, [S, ...], to their first rows, and 0 to the others: [R, ...]."""
        made = of_sequences.new_zeros((len(self.tokens), *of_sequences.shape[1:]))
        return made.index_copy_(0, self.first, of_sequences)


@dataclass(frozen=True, eq=False)
class SplitSequences:
    """The sequences of a step with new tokens, those whose tokens are verified in a piece for each token.

    Attributes:
        sequences: int64 [N], which of the step each of the pieces is of.
        behind: int [N], the keys behind each piece in its sequence.
        query_start_loc: int64 [N+1], on the CPU, the first new token of every piece, and their number; None: each piece
            has one.
    """

    sequences: Tensor
    behind: Tensor
    query_start_loc: Tensor | None

    @classmethod
    def of(cls, starts: np.ndarray, chosen: np.ndarray, like: Tensor) -> SplitSequences:
        """Cut the sequences ``chosen`` [S] of a step into tokens; arguments as `DraftRows.of` has them."""
        counts = np.diff(starts)
        pieces = (counts > 0).astype(np.int64)
        pieces[chosen] = counts[chosen]
        of = np.arange(len(pieces)).repeat(pieces)
        new = np.where(np.isin(of, chosen), 1, counts[of])
        behind = pieces.cumsum().repeat(pieces) - 1 - np.arange(len(of))
        sequences, behind_on_device = copy_indices_to_device(like.device, of, behind)
        ends = None if (new == 1).all() else torch.from_numpy(np.concatenate([[0], new.cumsum()]))
        return cls(sequences, behind_on_device.to(like.dtype), ends)

    def new_rows(self, seq_lens: Tensor, block_table: Tensor, most: int) -> NewRows:
        """Give each piece the keys up to its end; ``most`` of them are of one sequence."""
        lengths = (seq_lens.index_select(0, self.sequences) - self.behind).clamp_min(0)
        return NewRows(block_table.index_select(0, self.sequences), lengths, self.query_start_loc, most_in_a_row=most)


def tokens_of(starts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """List the new tokens of some sequences [P] of a step, by the first of every sequence and their number.

    Example:
        >>> tokens_of(np.array([0, 1, 4, 6]), np.array([0, 2])).tolist()
        [0, 4, 5]
    """
    counts = np.diff(starts)[chosen]
    tokens: np.ndarray = np.arange(counts.sum()) + np.repeat(starts[chosen] - (counts.cumsum() - counts), counts)
    return tokens


def copy_indices_to_device(device: torch.device, *numbers: np.ndarray) -> tuple[Tensor, ...]:
    """Copy lists of numbers to a device at once: int64 each.

    Example:
        >>> [each.tolist() for each in copy_indices_to_device(torch.device("cpu"), np.array([1, 2]), np.array([3]))]
        [[1, 2], [3]]
    """
    together = torch.from_numpy(np.concatenate(numbers).astype(np.int64))
    copied: tuple[Tensor, ...] = together.to(device).split([len(each) for each in numbers])
    return copied
