"""V sums beside a paged cache, which V-mean compensation needs in every decode step.

Kept is the cumulative sum of a sequence's V rows: at the end of each piece of a page, the sum of all its rows up to
there. So the mean of a sequence is one of these sums, and the rows after it, over its length.

What is guaranteed:

- `PageSums.means` makes the sum of a piece when a step writes its last row: the sum before it, and the rows of the
  piece, all read again. It never adds to an old sum of the same piece. So nothing more is needed for pages that are
  reused, or for tokens that are written again after a rejected draft.
- Sequences may share full pages if they share all pages before them, as with vLLM's prefix hash. The sums are then
  those of either. This holds within a step, too, in which one computes the pages that the other one goes on from.
- Rows past the end of a sequence never count, whatever they hold, NaN included.
- A sum stands for the rows that were there when it was made: nobody may write or move pages otherwise than in a step.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .._value_checks import check_blocks, check_cache_values, host_can_read
from ..cpu import page_sums as native
from ..cpu.operators import check_status
from ..errors import TopThetaValueError
from ..fallback.antiquant import dequantise

#: Rows of a piece on a CPU, where a step is done sooner if it reads few rows after the last sum.
_ROWS_ON_CPU = 32
#: Pieces that are gathered at once.
_AT_ONCE = 64


class PageSums:
    """Cumulative V sums of one layer's cache.

    Memory: 4 bytes per KV head and channel for each piece of a page. A piece is a page; on a CPU it is 32 rows of a
    page that has a multiple of them. That is 1 / rows of a half-precision cache of K and V.

    Args:
        num_blocks, block_size: pages of the cache, and rows of each.
        num_key_value_heads, head_dim: of the cache.
        device: of the cache.
        rows: of a piece, a divisor of ``block_size``; None as above.
        scale: of the channels of int8 values, float32 [Hkv, D].

    Example:
        >>> import torch
        >>> cache = torch.randn(3, 2, 4, 16)  # [blocks, Hkv, block_size, D]
        >>> sums = PageSums(3, 4, 2, 16, "cpu")
        >>> table = torch.tensor([[2, 0]], dtype=torch.int32)
        >>> prompt = NewRows(table, torch.tensor([5]), torch.tensor([0, 5]))  # page 2 and a row of page 0
        >>> sums.means(cache, prompt).shape
        torch.Size([0, 2, 16])
        >>> mean = sums.means(cache, NewRows(table, torch.tensor([6])))  # and one more
        >>> torch.allclose(mean[0], torch.cat([cache[2], cache[0, :, :2]], 1).mean(1), atol=1e-6)
        True
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_key_value_heads: int, head_dim: int, device: torch.device | str,
        rows: int | None = None, scale: Tensor | None = None,
    ) -> None:  # fmt: skip
        on_cpu = torch.device(device).type == "cpu"
        self._rows = rows or (_ROWS_ON_CPU if on_cpu and block_size % _ROWS_ON_CPU == 0 else block_size)
        self._pieces = block_size // self._rows
        self._shape = (num_blocks, num_key_value_heads, block_size, head_dim)
        self._scale = None if scale is None else scale[:, None]
        self._packed: tuple[Tensor, int, bytes] | None = None  # a cache, where it was, and its form
        # so that they can be written to outside of an inference mode that holds now
        with torch.inference_mode(False):
            # one more than pieces, for what is of none
            shape = (num_blocks * self._pieces + 1, num_key_value_heads, head_dim)
            self._sums = torch.zeros(shape, dtype=torch.float32, device=device)

    def means(self, value_cache: Tensor, new: NewRows) -> Tensor:
        """Make the sums that a step ends, and compute the mean V rows of its sequences with one new token.

        Sums are float32. So for a sequence of n rows a mean is at most (rows + n / rows + 2) · 2⁻²⁴ times the mean of
        |v| off, with the rows of a piece. On a CPU it is one native call where the operators are native and the cache
        is not int8. Elsewhere, a step without ``query_start_loc`` reads nothing on the host, and its shapes are
        constant, if a piece has more rows than ``most_in_a_row``.

        Args:
            value_cache: float16, bfloat16, float32 or, where there is a scale, int8 [blocks, Hkv, block_size, D], with
                the step's rows in it. Strides are free but for head_dim, whose elements lie side by side.
            new: the rows that the step has written.

        Returns:
            float32 [S, Hkv, D], in the order of the sequences; 0 for one of length 0.

        Raises:
            TopThetaValueError: on a CPU, for lengths and pages outside the cache.
        """
        seen = host_can_read(new.seq_lens)
        library = native.find(value_cache.dtype) if seen else None
        if library is not None:
            mean = self._sums.new_empty((new.num_decoding, *self._sums.shape[1:]))
            run = library.toptheta_page_sums
            if not check_status(run(self.native_form(value_cache), new.packed, mean.data_ptr())):
                _check_values(value_cache, new)
                raise AssertionError("the native page sums refused values that pass the checks in Python")
            return mean
        if seen:
            _check_values(value_cache, new)
        if new.query_start_loc is not None or new.most_in_a_row >= self._rows:
            self._make(value_cache, new)
        return self._means_of_decoding(value_cache, new.decoding_table, new.decoding_lengths)

    def native_form(self, value_cache: Tensor) -> bytes:
        """Pack where the sums and a cache on a CPU lie: the same object for the same cache.

        Raises:
            TopThetaValueError: it has another shape than the cache that the sums were made for.
        """
        packed = self._packed
        if packed is None or packed[0] is not value_cache or packed[1] != value_cache.data_ptr():
            if tuple(value_cache.shape) != self._shape:
                raise TopThetaValueError(
                    "value_cache", str(list(self._shape)), str(list(value_cache.shape)),
                    "make PageSums anew for another cache",
                )  # fmt: skip
            form = native.pack_layer(value_cache, self._sums, self._rows)
            self._packed = packed = value_cache, value_cache.data_ptr(), form
        return packed[2]

    def _make(self, value_cache: Tensor, new: NewRows) -> None:
        """Make the sums of all pieces that a step has ended."""
        for sequence, first, end in new.ended(self._rows):
            piece = torch.arange(max(first - 1, 0), end, device=self._sums.device)
            page = new.block_table[sequence].index_select(0, piece // self._pieces)
            places = page.long() * self._pieces + piece % self._pieces
            before = self._sums.new_zeros(())
            if first:
                before, places = self._sums[places[:1]], places[1:]
            own = torch.cat([self._content(value_cache, part).sum(2) for part in places.split(_AT_ONCE)])
            self._sums[places] = before + own.cumsum(0)

    def _means_of_decoding(self, value_cache: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        """Compute means, and keep the sums of the pieces that the lengths end with: float32 [B, Hkv, D]."""
        batch, width = table.shape
        if not batch or not width:
            return self._sums.new_zeros((batch, *self._sums.shape[1:]))
        lengths = lengths.long().clamp(0, width * value_cache.shape[2])
        # that of the last row
        piece = (lengths - 1).clamp_min(0) // self._rows
        rows = lengths - piece * self._rows
        places, places_before = self._places(table, piece), self._places(table, (piece - 1).clamp_min(0))
        own, total = self._sum_of(value_cache, places, rows), self._sums
        ended = torch.where(rows == self._rows, places, len(self._sums) - 1)
        for _ in range(2):  # the second time for rows behind a piece that another row of the step has ended
            before = self._sums.index_select(0, places_before)
            total = torch.where((piece > 0)[:, None, None], before, 0.0) + own
            self._sums[ended] = total
        return total / lengths.clamp_min(1)[:, None, None]

    def _places(self, table: Tensor, piece: Tensor) -> Tensor:
        """Find the sums of a piece [B] of each sequence. What is past its end may be any of them."""
        page = table.gather(1, (piece // self._pieces)[:, None]).squeeze(1).long().clamp(0, self._shape[0] - 1)
        return page * self._pieces + piece % self._pieces

    def _sum_of(self, value_cache: Tensor, places: Tensor, rows: Tensor) -> Tensor:
        """Add up the first ``rows`` [n] rows of some pieces: float32 [n, Hkv, D]."""
        valid = torch.arange(self._rows, device=places.device) < rows[:, None]
        return torch.where(valid[:, None, :, None], self._content(value_cache, places), 0.0).sum(2)

    def _content(self, value_cache: Tensor, places: Tensor) -> Tensor:
        """Gather the rows of pieces [n], as what they stand for: float32 [n, Hkv, rows, D]."""
        return dequantise(self._gathered(value_cache, places), self._scale)

    def _gathered(self, cache: Tensor, places: Tensor) -> Tensor:
        blocks, heads, _, head_dim = cache.shape
        # some devices copy all of a strided tensor before they gather from it
        by_rows = cache.transpose(1, 2)
        if by_rows.is_contiguous():
            pieces = by_rows.view(blocks * self._pieces, self._rows, heads, head_dim)
            return pieces.index_select(0, places).transpose(1, 2)
        if self._pieces == 1:
            return cache.index_select(0, places)
        pieces = cache.unflatten(2, (self._pieces, self._rows)).transpose(1, 2)
        content: Tensor = pieces[places // self._pieces, places % self._pieces]
        return content


class NewRows:
    """The rows that a step has written into the caches of all layers.

    Args:
        block_table: int32 or int64 [B, max_blocks], the pages of every sequence; entries past its last page are never
            followed.
        seq_lens: int32 or int64 [B], the rows of every sequence, the new ones included.
        query_start_loc: int32 or int64 [B+1] on the CPU, the first new token of every sequence, and their number; None:
            each has one new token.
        means: of sequences with one new token; False: nobody wants them.
        most_in_a_row: without ``query_start_loc``, new rows that may lie one behind the other, each given as that of a
            sequence of its own.

    Attributes:
        num_decoding: S, the sequences with one new token; 0 without ``means``.
    """

    def __init__(
        self, block_table: Tensor, seq_lens: Tensor, query_start_loc: Tensor | None = None, *, means: bool = True,
        most_in_a_row: int = 1,
    ) -> None:  # fmt: skip
        self.block_table, self.seq_lens, self.query_start_loc = block_table, seq_lens, query_start_loc
        self.decoding_table, self.decoding_lengths = block_table, seq_lens
        self.most_in_a_row = most_in_a_row
        self._means = means
        self._ended: dict[int, list[tuple[int, int, int]]] = {}
        if query_start_loc is not None:
            decoding = np.flatnonzero(np.diff(query_start_loc.numpy()) == 1)[: None if means else 0]
            chosen = torch.from_numpy(decoding).to(block_table.device)
            self.decoding_table, self.decoding_lengths = block_table[chosen], seq_lens[chosen]
        self.num_decoding = len(self.decoding_lengths)

    @cached_property
    def packed(self) -> bytes:
        """The same for the native form, which reads these tensors when it runs."""
        starts = self.query_start_loc
        starts = None if starts is None else starts.contiguous()
        self._kept = self.block_table.int().contiguous(), self.seq_lens.contiguous(), starts  # alive
        return native.pack_step(*self._kept, means=self._means)

    def ended(self, rows: int) -> list[tuple[int, int, int]]:
        """List sequences that have ended pieces of ``rows`` rows, with the first of these and the one after the last.

        A sequence may go on where another one ends in this step: it comes after it. This reads lengths on the host.
        """
        if rows not in self._ended:
            lengths = self.seq_lens.cpu().numpy().astype(np.int64)
            new = 1 if self.query_start_loc is None else np.diff(self.query_start_loc.numpy())
            first, end = np.maximum(lengths - new, 0) // rows, lengths // rows
            chosen = np.flatnonzero(end > first)
            order = chosen[np.argsort(first[chosen], kind="stable")]
            self._ended[rows] = [(int(each), int(first[each]), int(end[each])) for each in order]
        return self._ended[rows]


def _check_values(value_cache: Tensor, new: NewRows) -> None:
    """Check that lengths and pages lie inside the cache."""
    capacity = new.block_table.shape[1] * value_cache.shape[2]
    check_cache_values(new.seq_lens, None, capacity)
    check_blocks(value_cache, new.seq_lens, new.block_table)
