"""V sums of the pages of a paged cache, which V-mean compensation needs in every decode step.

The mean of a sequence is a sum over its pages. Full pages count by the sums kept here. The last, partly filled page is
summed from the cache. So sequences that share pages share their sums. A sequence that comes back finds the sums of the
pages that are still its own.

What is guaranteed:

- `PageSums.update` computes the sum of a page when a step writes the page's last row. It reads the whole page and never
  adds to an old sum. So nothing more is needed for pages that are reused, or for tokens that are written again after a
  rejected draft. A page that a sequence fills has its last row written last, or together with the others.
- A sum counts only for a full page, all of whose rows belong to the sequence. Rows past the end of a sequence never
  count, whatever they hold, NaN included.
- Beside each sum lie the bits of two pieces of its page, from the middle and the end, as they were when the sum was
  made. `PageSums.mean` compares them with the cache. So it notices a page that was written or copied past `update`,
  unless both pieces hold the same bits as before. On a CPU it computes such a sum anew at once, so the mean is right.
  On a device, where nobody can look, it leaves the page out of the mean. `PageSums.foreign_pages` counts both.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import torch
from torch import Tensor

from .._checks import DTYPES
from .._value_checks import are_seen
from ..errors import TopThetaTypeError, TopThetaValueError

_LOG = logging.getLogger("toptheta_npu")
#: Elements in each of the two pieces of a page that are compared.
_PIECE = 16
#: The bits of a page that no sum was made of: a NaN that no conversion makes.
_NEVER = -1
#: Bytes that are gathered at once.
_MOST_GATHERED = 64 * 2**20


class PageSums:
    """V sums of the pages of one layer's cache.

    Memory: for each page 4 bytes per KV head and channel, and 128 bytes. That is 1 / block_size of a half-precision
    cache of K and V, and a little more.

    Args:
        num_blocks: pages of the cache.
        num_key_value_heads, head_dim: of the cache.
        device: of the cache.

    Example:
        >>> import torch
        >>> cache = torch.randn(3, 2, 4, 16)  # [blocks, Hkv, block_size, D]
        >>> sums = PageSums(3, 2, 16, "cpu")
        >>> sums.update(cache, torch.tensor([8, 9, 10, 11, 0, 1]))  # page 2 and half of page 0
        >>> mean = sums.mean(cache, torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([6]))
        >>> torch.allclose(mean[0], torch.cat([cache[2], cache[0, :, :2]], 1).mean(1), atol=1e-6)
        True
    """

    def __init__(self, num_blocks: int, num_key_value_heads: int, head_dim: int, device: torch.device | str) -> None:
        self._piece = math.gcd(_PIECE, head_dim)
        # so that they can be written to outside of an inference mode that holds now
        with torch.inference_mode(False):
            # one row more than pages, for what is of no page
            self._sums = torch.zeros(num_blocks + 1, num_key_value_heads, head_dim, device=device)
            self._bits = torch.full((num_blocks + 1, 2, self._piece), _NEVER, dtype=torch.int32, device=device)
            self._foreign = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of the sums and of the pieces of pages beside them."""
        return self._sums.nbytes + self._bits.nbytes

    def foreign_pages(self) -> int:
        """Count the full pages written past `update`, once for each mean that met them. This waits for the device."""
        return int(self._foreign)

    def update(self, value_cache: Tensor, slots: Tensor, most_pages: int | None = None) -> None:
        """Compute anew, from the cache, the sums of the pages that a step has written to their ends.

        Args:
            value_cache: float16, bfloat16 or float32 [blocks, Hkv, block_size, D], with the step's rows in it. Strides
                are free but for head_dim, whose elements lie side by side.
            slots: int32 or int64 [tokens], page · block_size + row of every token of the step; -1 is no token.
            most_pages: pages that the tokens can lie in, at most, those of each sequence counted for itself: its n
                tokens in a row lie in at most n // block_size + 2. None means one page per token. A device reads as
                many, whatever the slots say; a CPU looks at the slots. Pages beyond it are left out of means.

        Raises:
            TopThetaTypeError, TopThetaValueError: on a CPU also for slots outside the cache.
        """
        self._check(value_cache)
        _check_integers("slots", slots, 1)
        num_blocks, block_size = value_cache.shape[0], value_cache.shape[2]
        if are_seen(slots):
            pages = _ended_pages(slots, num_blocks, block_size)
            if not len(pages):
                return
        else:
            inside = (slots >= 0) & (slots < num_blocks * block_size)
            pages = torch.where(inside, slots.long() // block_size, num_blocks)
            pages = _runs(pages, num_blocks, len(slots) if most_pages is None else most_pages)
        self._sum_up(value_cache, pages)

    def rebuild(self, value_cache: Tensor) -> None:
        """Compute the sums of all pages anew, after pages were written past `update`. This reads the whole cache.

        Args:
            value_cache: as for `update`.

        Raises:
            TopThetaTypeError, TopThetaValueError.
        """
        self._check(value_cache)
        page_bytes = 4 * value_cache[0].numel()
        for pages in torch.arange(len(value_cache), device=value_cache.device).split(_at_once(page_bytes)):
            self._sum_up(value_cache, pages)

    def mean(
        self, value_cache: Tensor, block_table: Tensor, seq_lens: Tensor, places: SeenPlaces | None = None
    ) -> Tensor:
        """Compute the mean of the V rows of every sequence, as ``value_mean`` of `incremental_attention` takes it.

        Sums are float32, so it is at most (block_size + pages + 2) · 2⁻²⁴ times the mean of |v| off.

        Args:
            value_cache: as for `update`.
            block_table: int32 or int64 [B, max_blocks]; entries past a sequence's last page are never read.
            seq_lens: int32 or int64 [B]; a length of 0 gives a mean of 0.
            places: made of these two, for the caches of several layers; on a CPU alone.

        Returns:
            float32 [B, Hkv, D].

        Raises:
            TopThetaTypeError, TopThetaValueError.
        """
        self._check(value_cache)
        _check_integers("block_table", block_table, 2)
        _check_integers("seq_lens", seq_lens, 1)
        batch, width = block_table.shape
        if seq_lens.shape[0] != batch:
            raise TopThetaValueError("seq_lens", f"{batch} lengths, one per row of block_table", str(len(seq_lens)))
        block_size = value_cache.shape[2]
        if are_seen(seq_lens):
            return self._mean_of_seen(value_cache, places or SeenPlaces(block_table, seq_lens, block_size))
        lengths = seq_lens.long().clamp(0, width * block_size)
        full_pages = lengths // block_size
        total, counted = self._sum_of_full_pages(value_cache, block_table, full_pages)
        rest = lengths - full_pages * block_size
        if batch and width:
            total = total + _sum_of_last_pages(value_cache, block_table, full_pages, rest)
        return total / (counted * block_size + rest).clamp_min(1)[:, None, None]

    def _sum_of_full_pages(self, value_cache: Tensor, table: Tensor, full_pages: Tensor) -> tuple[Tensor, Tensor]:
        """Add up the pages that count, float32 [B, Hkv, D], and count them, int64 [B]."""
        batch, width = table.shape
        total = self._sums.new_zeros((batch, *self._sums.shape[1:]))
        counted = torch.zeros_like(full_pages)
        columns = _at_once(total.nbytes)
        for first in range(0, width, columns):
            pages = table[:, first : min(first + columns, width)].long()
            column = torch.arange(first, first + pages.shape[1], device=table.device)
            full = column < full_pages[:, None]
            pages = torch.where(full, pages, 0).clamp(0, value_cache.shape[0] - 1)
            counts = self._own_pages(value_cache, pages, full)
            sums = self._sums.index_select(0, pages.flatten()).unflatten(0, pages.shape)
            total = total + torch.where(counts[..., None, None], sums, 0.0).sum(1)
            counted = counted + counts.sum(1)
        return total, counted

    def _mean_of_seen(self, value_cache: Tensor, places: SeenPlaces) -> Tensor:
        """Compute the mean on a CPU. Gather and add up the rows and sums that count in one operation each."""
        self._renew_foreign(value_cache, places.pages.clamp(0, value_cache.shape[0] - 1))
        total = _bag_sums(self._sums.flatten(1), places.pages, places.page_starts).unflatten(1, self._sums.shape[1:])
        mean: Tensor = (total + places.sums_of_rest(value_cache)) / places.counts
        return mean

    def _renew_foreign(self, value_cache: Tensor, pages: Tensor) -> None:
        """Compute anew the sums of those among ``pages`` [n] that hold something else than they did."""
        if not torch.equal(self._bits.index_select(0, pages), self._bits_of(value_cache, pages)):
            foreign = pages[~self._are_same(value_cache, pages)]
            _LOG.warning(
                "V-mean compensation: %d full pages of the cache were written past the attention backend; their V sums "
                "were made anew", len(foreign),
            )  # fmt: skip
            self._foreign += len(foreign)
            self._sum_up(value_cache, torch.unique(foreign))

    def _are_same(self, value_cache: Tensor, pages: Tensor) -> Tensor:
        """Tell which of ``pages`` [n] still hold what their sums were made of: bool [n]."""
        return (self._bits.index_select(0, pages) == self._bits_of(value_cache, pages)).flatten(1).all(1)

    def _own_pages(self, value_cache: Tensor, pages: Tensor, full: Tensor) -> Tensor:
        """Tell which of the ``full`` among ``pages`` [B, n] still hold what their sums were made of: bool [B, n]."""
        same = self._are_same(value_cache, pages.flatten()).view_as(pages)
        self._foreign += (full & ~same).sum()
        return full & same

    def _sum_up(self, value_cache: Tensor, pages: Tensor) -> None:
        """Compute the sums of ``pages`` [n] anew. A number past the last page is of no page."""
        readable = pages.clamp_max(value_cache.shape[0] - 1)
        self._sums[pages] = _content(value_cache, readable).float().sum(2)
        self._bits[pages] = self._bits_of(value_cache, readable)

    def _bits_of(self, value_cache: Tensor, pages: Tensor) -> Tensor:
        """Read the two pieces of every page in ``pages`` [n] that tell whether it has changed: int32 [n, 2, piece]."""
        blocks, heads, block_size, head_dim = value_cache.shape
        page, head, row, _ = (stride // self._piece for stride in value_cache.stride())
        # the last row tells most: in all layers but the first it depends on all tokens before it
        pieces = (max(block_size // 2 - 1, 0) * row, (heads - 1) * head + (block_size - 1) * row)
        count = (blocks - 1) * page + pieces[1] + head_dim // self._piece
        # a flat view, since some devices copy all of a strided tensor before they gather from it
        flat = value_cache.as_strided((count, self._piece), (self._piece, 1))
        index = torch.stack([pages * page + piece for piece in pieces], 1)
        bits: Tensor = flat.index_select(0, index.flatten()).float().view(torch.int32).unflatten(0, index.shape)
        return bits

    def _check(self, value_cache: Tensor) -> None:
        blocks, heads, head_dim = self._sums.shape[0] - 1, *self._sums.shape[1:]
        shape = value_cache.shape
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != (blocks, heads, head_dim) or shape[2] < 1:
            raise TopThetaValueError(
                "value_cache", f"[{blocks}, {heads}, block_size, {head_dim}]", str(list(shape)),
                "make PageSums anew for another cache",
            )  # fmt: skip
        if value_cache.dtype not in DTYPES:
            raise TopThetaTypeError(
                "value_cache", "float16, bfloat16 or float32", str(value_cache.dtype), "quantised caches have no V sums"
            )
        *others, channel = value_cache.stride()
        if channel != 1 or any(stride % self._piece for stride in others):
            raise TopThetaValueError(
                "value_cache", f"rows of {head_dim} elements side by side, at multiples of {self._piece} elements",
                f"strides {value_cache.stride()}",
            )  # fmt: skip


class SeenPlaces:
    """Places of the rows of every sequence, for `PageSums.mean` on a CPU. They are the same in all layers.

    Args:
        block_table: int32 or int64 [B, max_blocks].
        seq_lens: int32 or int64 [B].
        block_size: rows of a page.
    """

    def __init__(self, block_table: Tensor, seq_lens: Tensor, block_size: int) -> None:
        table = block_table.numpy()
        self._lengths = np.clip(seq_lens.numpy().astype(np.int64), 0, table.shape[1] * block_size)
        full = self._lengths // block_size
        self._rest = self._lengths - full * block_size
        width = int(full.max(initial=0))
        self.pages = torch.from_numpy(table[:, :width][np.arange(width) < full[:, None]].astype(np.int64))
        self.page_starts = torch.from_numpy(full.cumsum() - full)
        self.counts = torch.from_numpy(np.maximum(self._lengths, 1).astype(np.float32))[:, None, None]
        last = np.minimum(full, max(table.shape[1] - 1, 0))[:, None]
        self._last = np.take_along_axis(table, last, 1)[:, 0] if table.shape[1] else np.zeros_like(full)
        self._bags: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def sums_of_rest(self, value_cache: Tensor) -> Tensor:
        """Add up the rows of every sequence's last, partly filled page: float32 [B, Hkv, D]."""
        blocks, heads, _, head_dim = value_cache.shape
        *strides, _ = value_cache.stride()
        if value_cache.dtype != torch.float32 or any(stride % head_dim for stride in strides):
            return self._sums_one_by_one(value_cache)
        page, head, row = (stride // head_dim for stride in strides)
        count = (blocks - 1) * page + (heads - 1) * head + (value_cache.shape[2] - 1) * row + 1
        rows = value_cache.as_strided((count, head_dim), (head_dim, 1))
        key = (blocks, heads, page, head, row)
        if key not in self._bags:
            self._bags[key] = self._bags_of(*key)
        return _bag_sums(rows, *self._bags[key]).view(heads, -1, head_dim).transpose(0, 1)

    def _bags_of(self, blocks: int, heads: int, page: int, head: int, row: int) -> tuple[Tensor, Tensor]:
        """List the row numbers of every bag, and where each bag starts. A bag is one KV head of one sequence."""
        starts = self._rest.cumsum() - self._rest
        total = int(self._rest.sum())
        first = np.clip(self._last.astype(np.int64), 0, blocks - 1) * page - starts * row
        one_head = np.repeat(first, self._rest) + np.arange(total) * row
        bags = np.arange(heads)[:, None] * total + starts
        rows = np.arange(heads)[:, None] * head + one_head
        return torch.from_numpy(rows.reshape(-1)), torch.from_numpy(bags.reshape(-1))

    def _sums_one_by_one(self, value_cache: Tensor) -> Tensor:
        blocks, heads, _, head_dim = value_cache.shape
        if not len(self._rest):
            return value_cache.new_zeros((0, heads, head_dim), dtype=torch.float32)
        pages = np.clip(self._last, 0, blocks - 1).tolist()
        parts = zip(pages, self._rest.tolist(), strict=True)
        return torch.stack([value_cache[page, :, :rows].sum(1, dtype=torch.float32) for page, rows in parts])


def _bag_sums(rows: Tensor, numbers: Tensor, starts: Tensor) -> Tensor:
    """Add up each bag of ``rows`` [N, D]: [B, D]. The ``numbers`` of the bags' rows begin at ``starts`` [B]."""
    return torch.nn.functional.embedding_bag(numbers, rows, starts, mode="sum")


def _at_once(each: int) -> int:
    """Compute how many pieces of ``each`` bytes are gathered at once."""
    return max(1, _MOST_GATHERED // max(1, each))


def _runs(pages: Tensor, none: int, most: int) -> Tensor:
    """Find the first ``most`` of the runs of equal numbers in ``pages`` [n], without those of ``none``: [min(n, most)].

    What is left over is ``none``. All shapes are those of the arguments, so a captured graph may replay it.
    """
    if most >= len(pages):
        return pages
    starts = torch.ones_like(pages, dtype=torch.bool)
    starts[1:] = pages[1:] != pages[:-1]
    starts &= pages != none
    place = torch.where(starts, starts.cumsum(0) - 1, most).clamp_max(most)
    return torch.full_like(pages[: most + 1], none).scatter(0, place, pages)[:most]


def _sum_of_last_pages(value_cache: Tensor, table: Tensor, full_pages: Tensor, rest: Tensor) -> Tensor:
    """Add up the first ``rest`` rows [B] of every sequence's last, partly filled page: float32 [B, Hkv, D]."""
    last = table.long().gather(1, full_pages.clamp_max(table.shape[1] - 1)[:, None]).squeeze(1)
    pages = torch.where(rest > 0, last, 0).clamp(0, value_cache.shape[0] - 1)
    valid = torch.arange(value_cache.shape[2], device=table.device) < rest[:, None]
    return torch.where(valid[:, None, :, None], _content(value_cache, pages).float(), 0.0).sum(2)


def _content(value_cache: Tensor, pages: Tensor) -> Tensor:
    """Gather the rows of ``pages`` [n]: [n, Hkv, block_size, D]."""
    # some devices copy all of a strided tensor before they gather from it
    by_rows = value_cache.transpose(1, 2)
    if by_rows.is_contiguous():
        return by_rows.index_select(0, pages).transpose(1, 2)
    return value_cache.index_select(0, pages)


def _check_integers(name: str, tensor: Tensor, dims: int) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TopThetaTypeError(name, "int32 or int64", str(tensor.dtype))
    if tensor.dim() != dims:
        raise TopThetaValueError(name, f"{dims} dimension{'s' * (dims > 1)}", str(list(tensor.shape)))


def _ended_pages(slots: Tensor, num_blocks: int, block_size: int) -> Tensor:
    """Find the pages whose last rows are among ``slots``. Refuse slots outside the cache: a CPU sees them for free."""
    numbers = slots.numpy()  # whose operations take a quarter of the time
    if not len(numbers):
        return slots
    low, high = int(numbers.min()), int(numbers.max())
    if low < -1 or high >= num_blocks * block_size:
        raise TopThetaValueError(
            "slots", f"-1 to {num_blocks * block_size - 1} (the cache's capacity)", str(low if low < -1 else high)
        )
    ended = numbers[(numbers % block_size == block_size - 1) & (numbers >= 0)]
    return torch.from_numpy(np.unique(ended // block_size)).long()
