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
- A sum stands for the rows that were there when it was made. Who writes pages otherwise than in a step, or moves them,
  has to call `PageSums.rebuild` for the sequences that have them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._checks import DTYPES
from .._value_checks import check_blocks, check_cache_values, host_can_read
from ..cpu import page_sums as native
from ..cpu.operators import check_status
from ..errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError

#: Rows of a piece on a CPU, where a step is done sooner if it reads few rows after the last sum.
_ROWS_ON_CPU = 32
#: Bytes that are gathered at once.
_MAX_GATHERED = 64 * 2**20


class PageSums:
    """Cumulative V sums of one layer's cache.

    Memory: 4 bytes per KV head and channel for each piece of a page. A piece is a page; on a CPU it is 32 rows of a
    page that has a multiple of them. That is 1 / rows of a half-precision cache of K and V.

    Args:
        num_blocks, block_size: pages of the cache, and rows of each.
        num_key_value_heads, head_dim: of the cache.
        device: of the cache.
        rows: of a piece, a divisor of ``block_size``; None as above.

    Raises:
        TopThetaNotImplementedError: pieces of one row on a device.

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
        rows: int | None = None,
    ) -> None:  # fmt: skip
        on_cpu = torch.device(device).type == "cpu"
        self._rows = rows or (_ROWS_ON_CPU if on_cpu and block_size % _ROWS_ON_CPU == 0 else block_size)
        if self._rows == 1 and not on_cpu:
            raise TopThetaNotImplementedError("block_size", "2 rows or more", "1", "choose larger pages")
        self._pieces = block_size // self._rows
        self._shape = (num_blocks, num_key_value_heads, block_size, head_dim)
        self._packed = b""
        self._packed_for: tuple[Tensor, int] | None = None  # and where it was
        # so that they can be written to outside of an inference mode that holds now
        with torch.inference_mode(False):
            # one more than pieces, for what is of none
            shape = (num_blocks * self._pieces + 1, num_key_value_heads, head_dim)
            self._sums = torch.zeros(shape, dtype=torch.float32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of the sums."""
        return self._sums.nbytes

    def means(self, value_cache: Tensor, new: NewRows) -> Tensor:
        """Make the sums that a step ends, and compute the mean V rows of its sequences with one new token.

        Sums are float32. So for a sequence of n rows a mean is at most (rows + n / rows + 2) · 2⁻²⁴ times the mean of
        |v| off, with the rows of a piece. On a CPU it is one native call where the operators are native. Elsewhere,
        a step without ``query_start_loc`` reads nothing on the host, and its shapes are constant, if a piece has more
        rows than ``most_in_a_row``.

        Args:
            value_cache: float16, bfloat16 or float32 [blocks, Hkv, block_size, D], with the step's rows in it.
                Strides are free but for head_dim, whose elements lie side by side.
            new: the rows that the step has written.

        Returns:
            float32 [S, Hkv, D], in the order of the sequences; 0 for one of length 0.

        Raises:
            TopThetaTypeError, TopThetaValueError: on a CPU also for lengths and pages outside the cache.
        """
        seen = host_can_read(new.seq_lens)
        if seen and new.leaves_sums(self._rows):
            return self._sums.new_zeros((0, *self._sums.shape[1:]))
        library = new.native_form(value_cache.dtype) if seen else None
        if library is not None:
            return self._native_means(library.toptheta_page_sums, value_cache, new)
        self._check(value_cache)
        if seen:
            _check_values(value_cache, new)
        if new.query_start_loc is not None or new.most_in_a_row >= self._rows:
            self._make(value_cache, new.ended(self._rows, self._pieces))
        return self._means_of_decoding(value_cache, new.decoding_table, new.decoding_lengths)

    def rebuild(self, value_cache: Tensor, block_table: Tensor, seq_lens: Tensor) -> None:
        """Make the sums of some sequences anew, after their pages were written or moved otherwise than in a step.

        Args:
            value_cache: as for `means`.
            block_table: int32 or int64 [B, max_blocks].
            seq_lens: int32 or int64 [B], the rows of each that are in the cache.

        Raises:
            TopThetaTypeError, TopThetaValueError: as `means`.
        """
        starts = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), seq_lens.cpu().long().cumsum(0)])
        self.means(value_cache, NewRows(block_table, seq_lens, starts))

    def native_form(self, value_cache: Tensor) -> bytes:
        """Pack where the sums and a cache on a CPU lie: the same object for the same cache.

        Raises:
            TopThetaTypeError, TopThetaValueError: as `means`.
        """
        packed_for = self._packed_for
        if packed_for is None or packed_for[0] is not value_cache or packed_for[1] != value_cache.data_ptr():
            self._check(value_cache)
            self._packed = native.pack_layer(value_cache, self._sums, self._rows)
            self._packed_for = value_cache, value_cache.data_ptr()
        return self._packed

    def _native_means(self, run: Callable[[bytes, bytes, int], int], value_cache: Tensor, new: NewRows) -> Tensor:
        mean = self._sums.new_empty((new.num_decoding, *self._sums.shape[1:]))
        if not check_status(run(self.native_form(value_cache), new.packed, mean.data_ptr())):
            _check_values(value_cache, new)
            raise AssertionError("the native page sums refused values that pass the checks in Python")
        return mean

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

    def _make(self, value_cache: Tensor, ended: Ended | None) -> None:
        """Make the sums of all pieces that a step has ended."""
        if ended is None:
            return
        at_once = max(1, _MAX_GATHERED // max(1, 4 * self._rows * self._sums[0].numel()))
        parts = ended.places.split(at_once)
        own = torch.cat([self._content(value_cache, part).sum(2) for part in parts])
        runs = own.new_zeros((*ended.shape, *own.shape[1:]))
        runs[ended.sequence, ended.order] = own
        runs = runs.cumsum(1)[ended.sequence, ended.order]
        for pieces in ended.turns:
            of = ended.sequence[pieces]
            before = torch.where(ended.goes_on[of][:, None, None], self._sums[ended.before[of]], 0.0)
            self._sums[ended.places[pieces]] = before + runs[pieces]

    def _content(self, value_cache: Tensor, places: Tensor) -> Tensor:
        """Gather the rows of pieces [n], as what they stand for: float32 [n, Hkv, rows, D]."""
        blocks, heads, _, head_dim = value_cache.shape
        # some devices copy all of a strided tensor before they gather from it
        by_rows = value_cache.transpose(1, 2)
        if by_rows.is_contiguous():
            pieces = by_rows.view(blocks * self._pieces, self._rows, heads, head_dim)
            return pieces.index_select(0, places).transpose(1, 2).float()
        if self._pieces == 1:
            return value_cache.index_select(0, places).float()
        pieces = value_cache.unflatten(2, (self._pieces, self._rows)).transpose(1, 2)
        return pieces[places // self._pieces, places % self._pieces].float()

    def _check(self, value_cache: Tensor) -> None:
        if tuple(value_cache.shape) != self._shape:
            raise TopThetaValueError(
                "value_cache", str(list(self._shape)), str(list(value_cache.shape)),
                "make PageSums anew for another cache",
            )  # fmt: skip
        if value_cache.dtype not in DTYPES:
            raise TopThetaTypeError("value_cache", "float16, bfloat16 or float32", str(value_cache.dtype))
        if value_cache.stride(3) != 1:
            raise TopThetaValueError(
                "value_cache", f"rows of {self._shape[3]} elements side by side", f"strides {value_cache.stride()}"
            )


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

    Raises:
        TopThetaTypeError, TopThetaValueError: for dtypes and shapes.
    """

    def __init__(
        self, block_table: Tensor, seq_lens: Tensor, query_start_loc: Tensor | None = None, *, means: bool = True,
        most_in_a_row: int = 1,
    ) -> None:  # fmt: skip
        _check_integers("block_table", block_table, 2)
        _check_integers("seq_lens", seq_lens, 1)
        batch = len(block_table)
        if len(seq_lens) != batch:
            raise TopThetaValueError("seq_lens", f"{batch} lengths, one per row of block_table", str(len(seq_lens)))
        self.block_table, self.seq_lens, self.query_start_loc = block_table, seq_lens, query_start_loc
        self.num_decoding, self.most_in_a_row = batch, most_in_a_row
        self.decoding_table, self.decoding_lengths = block_table, seq_lens
        self._means = means
        self._leaves: dict[int, bool] = {}
        self._ended: dict[tuple[int, int], Ended | None] = {}
        self._forms: dict[torch.dtype, ctypes.CDLL | None] = {}
        if query_start_loc is not None:
            _check_integers("query_start_loc", query_start_loc, 1)
            if len(query_start_loc) != batch + 1:
                raise TopThetaValueError("query_start_loc", f"{batch + 1} numbers", str(len(query_start_loc)))
            decoding = np.flatnonzero(np.diff(query_start_loc.numpy()) == 1)[: None if means else 0]
            self.num_decoding = len(decoding)
            chosen = torch.from_numpy(decoding).to(block_table.device)
            self.decoding_table, self.decoding_lengths = block_table[chosen], seq_lens[chosen]
        elif not means:
            raise TopThetaValueError("query_start_loc", "where sequences begin, without means", "None")

    def native_form(self, dtype: torch.dtype) -> ctypes.CDLL | None:
        """Find the library for caches of a dtype, once for all layers; None: there is none."""
        if dtype not in self._forms:
            self._forms[dtype] = native.find(dtype)
        return self._forms[dtype]

    @cached_property
    def packed(self) -> bytes:
        """The same for the native form, which reads these tensors when it runs."""
        starts = self.query_start_loc
        starts = None if starts is None else starts.contiguous()
        self._kept = self.block_table.int().contiguous(), self.seq_lens.contiguous(), starts  # alive
        return native.pack_step(*self._kept, means=self._means)

    def leaves_sums(self, rows: int) -> bool:
        """Tell whether no piece of ``rows`` rows ends and no mean is wanted. This reads lengths on the host."""
        if self.query_start_loc is None or self._means:
            return False
        if rows not in self._leaves:
            lengths, new = self.seq_lens.numpy(), np.diff(self.query_start_loc.numpy())
            self._leaves[rows] = bool((lengths // rows <= np.maximum(lengths - new, 0) // rows).all())
        return self._leaves[rows]

    def ended(self, rows: int, pieces: int) -> Ended | None:
        """Find the pieces of pages that the step has ended; None if there are none. This reads lengths on the host.

        Args:
            rows: of a piece.
            pieces: of a page.
        """
        if (rows, pieces) not in self._ended:
            self._ended[rows, pieces] = self._find_ended(rows, pieces)
        return self._ended[rows, pieces]

    def _find_ended(self, rows: int, pieces: int) -> Ended | None:
        lengths = self.seq_lens.cpu().numpy().astype(np.int64)
        new = 1 if self.query_start_loc is None else np.diff(self.query_start_loc.numpy())
        first, end = np.maximum(lengths - new, 0) // rows, lengths // rows
        chosen = np.flatnonzero(end > first)
        if not len(chosen):
            return None
        first, counts = first[chosen], (end - first)[chosen]
        sequence = np.repeat(np.arange(len(chosen)), counts)
        order = np.arange(len(sequence)) - np.repeat(counts.cumsum() - counts, counts)
        places = self._places(chosen[sequence], first[sequence] + order, pieces)
        before = self._places(chosen, np.maximum(first - 1, 0), pieces)
        # a sequence that goes on where another one ends in this step has its turn after it
        late = (first > 0) & np.isin(before.cpu().numpy(), places.cpu().numpy())
        turns = [~late, *(late & (first == each) for each in np.unique(first[late]))]
        device = places.device

        def put(numbers: np.ndarray) -> Tensor:
            return torch.from_numpy(numbers).to(device)

        return Ended(
            places, put(sequence), put(order), (len(chosen), int(counts.max())), before, put(first > 0),
            [put(np.flatnonzero(turn[sequence])) for turn in turns],
        )  # fmt: skip

    def _places(self, sequence: np.ndarray, piece: np.ndarray, pieces: int) -> Tensor:
        """Find the sums of pieces [n], each of a sequence [n]."""
        rows, pages, rest = torch.from_numpy(np.stack([sequence, piece // pieces, piece % pieces])).to(
            self.block_table.device
        )
        places: Tensor = self.block_table[rows, pages].long() * pieces + rest
        return places


class Ended(NamedTuple):
    """The n pieces of pages that m sequences have ended in a step.

    Attributes:
        places: int64 [n], of their sums.
        sequence, order: int64 [n], which of the m it is, and which of its pieces.
        shape: m, and the most pieces of one.
        before: int64 [m], the place of the sum before the first piece, where there is one.
        goes_on: bool [m], whether there is one.
        turns: the pieces that can be made at once, int64 each, and those that need their sums next.
    """

    places: Tensor
    sequence: Tensor
    order: Tensor
    shape: tuple[int, int]
    before: Tensor
    goes_on: Tensor
    turns: list[Tensor]


def _check_integers(name: str, tensor: Tensor, dims: int) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TopThetaTypeError(name, "int32 or int64", str(tensor.dtype))
    if tensor.dim() != dims:
        raise TopThetaValueError(name, f"{dims} dimension{'s' * (dims > 1)}", str(list(tensor.shape)))


def _check_values(value_cache: Tensor, new: NewRows) -> None:
    """Check that lengths and pages lie inside the cache."""
    capacity = new.block_table.shape[1] * value_cache.shape[2]
    check_cache_values(new.seq_lens, None, capacity)
    check_blocks(value_cache, new.seq_lens, new.block_table)
