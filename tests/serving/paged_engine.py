"""What a serving engine does to a paged V cache and its sums, and a plain record of every sequence beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from toptheta_npu.vllm.page_sums import PageSums

HEADS, HEAD_DIM = 2, 16
#: Entries of a block table past a sequence's last page: never to be followed.
GARBAGE = (-7, 10**6)


@dataclass(eq=False)
class Sequence:
    """Rows [n, Hkv, D] float32 of a sequence and the pages that hold them; the first ``shared`` it may not write."""

    rows: Tensor = field(repr=False)
    pages: list[int] = field(default_factory=list)
    shared: int = 0


class PagedEngine:
    """A cache of whole numbers, whose float32 sums are exact in any order: a mean has one right bit pattern."""

    def __init__(self, num_blocks: int, block_size: int, dtype: torch.dtype, layout: str = "heads first") -> None:
        self.block_size = block_size
        self.cache = empty_cache(num_blocks, block_size, dtype, layout)
        self.sums = PageSums(num_blocks, HEADS, HEAD_DIM, "cpu")
        self.free = list(range(num_blocks))
        self.holders = [0] * num_blocks
        self.sequences: list[Sequence] = []
        self._random = torch.Generator().manual_seed(0)

    def draw(self, tokens: int) -> Tensor:
        """V rows [tokens, Hkv, D] that no earlier row equals."""
        return torch.randint(-8, 9, (tokens, HEADS, HEAD_DIM), generator=self._random).float()

    def room(self, sequence: Sequence) -> int:
        """Tokens that can still be appended."""
        return (len(sequence.pages) + len(self.free)) * self.block_size - len(sequence.rows)

    def take_page(self) -> int:
        page = self.free.pop(0)
        self.holders[page] = 1
        return page

    def start(self, parent: Sequence | None = None, shared: int = 0) -> Sequence:
        """A sequence of no tokens, or of the first ``shared`` full pages of another."""
        rows = torch.empty(0, HEADS, HEAD_DIM) if parent is None else parent.rows[: shared * self.block_size]
        sequence = Sequence(rows, [] if parent is None else parent.pages[:shared], shared)
        for page in sequence.pages:
            self.holders[page] += 1
        self.sequences.append(sequence)
        return sequence

    def step(self, tokens: list[tuple[Sequence, Tensor]], padding: int = 0) -> None:
        """Writes new rows of some sequences and tells the sums, with padding slots as in a captured graph."""
        slots = [self.write(sequence, row) for sequence, rows in tokens for row in rows]
        self.sums.update(self.cache, torch.tensor(slots + [-1] * padding, dtype=torch.int64))

    def write(self, sequence: Sequence, row: Tensor) -> int:
        """Writes one row without telling the sums, and returns its slot."""
        position = len(sequence.rows)
        if position // self.block_size == len(sequence.pages):
            sequence.pages.append(self.take_page())
        page, offset = sequence.pages[position // self.block_size], position % self.block_size
        self.cache[page, :, offset] = row.to(self.cache.dtype)
        sequence.rows = torch.cat([sequence.rows, row[None]])
        return page * self.block_size + offset

    def roll_back(self, sequence: Sequence, tokens: int) -> None:
        """Rejects the last tokens; their rows stay in the cache, as do the pages in the table."""
        sequence.rows = sequence.rows[: len(sequence.rows) - tokens]

    def drop(self, sequence: Sequence, *, poison: bool) -> None:
        """Ends or preempts a sequence; what its pages hold stays there, or becomes NaN."""
        self.sequences.remove(sequence)
        for page in sequence.pages:
            self.holders[page] -= 1
            if not self.holders[page]:
                self.free.append(page)
                if poison:
                    self.cache[page] = torch.nan

    def move_page(self, sequence: Sequence, index: int) -> None:
        """Copies a page to another without telling the sums."""
        old, new = sequence.pages[index], self.take_page()
        self.cache[new] = self.cache[old]
        sequence.pages[index] = new
        self.holders[old] -= 1
        if not self.holders[old]:
            self.free.append(old)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Block table and lengths of all sequences, and of one of length 0."""
        width = max([len(sequence.pages) for sequence in self.sequences] + [0]) + 1
        table = torch.tensor(GARBAGE).repeat(len(self.sequences) + 1, width)[:, :width].to(torch.int32)
        for row, sequence in zip(table, self.sequences, strict=False):
            used = -(-len(sequence.rows) // self.block_size)
            row[:used] = torch.tensor(sequence.pages[:used])
        return table, torch.tensor([len(sequence.rows) for sequence in self.sequences] + [0], dtype=torch.int32)

    def mean(self) -> Tensor:
        """What the sums say of `batch`."""
        return self.sums.mean(self.cache, *self.batch())

    def expected(self) -> Tensor:
        """The same from the rows of every sequence: float32 [sequences + 1, Hkv, D]."""
        means = [naive_mean(sequence.rows) for sequence in self.sequences]
        return torch.stack([*means, torch.zeros(HEADS, HEAD_DIM)])


def naive_mean(rows: Tensor) -> Tensor:
    """The mean of rows [n, Hkv, D], 0 without rows."""
    return rows.sum(0) / max(len(rows), 1)


def empty_cache(num_blocks: int, block_size: int, dtype: torch.dtype, layout: str) -> Tensor:
    """A cache [blocks, Hkv, block_size, D] full of NaN, laid out as an engine does."""
    if layout == "heads first":
        cache = torch.empty(num_blocks, HEADS, block_size, HEAD_DIM, dtype=dtype)
    elif layout == "rows first":
        cache = torch.empty(num_blocks, block_size, HEADS, HEAD_DIM, dtype=dtype).transpose(1, 2)
    else:  # K and V of a page side by side
        cache = torch.empty(num_blocks, HEADS, 2 * block_size, HEAD_DIM, dtype=dtype).chunk(2, dim=2)[1]
    return cache.fill_(torch.nan)
