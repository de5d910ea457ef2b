"""A scheduler in small over a paged V cache: prefix hashes, chunks, drafts, reuse; and what every mean has to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import toptheta_npu
from toptheta_npu.vllm import page_sums
from toptheta_npu.vllm.page_sums import NewRows, PageSums

HEADS, HEAD_DIM = 2, 16
#: Entries of a block table past a sequence's last page: never to be followed.
GARBAGE = (-7, 10**6)
#: The native form, and that of PyTorch where values are looked at and where they are not, as on a device.
FORMS = ("native", "torch", "device")


@contextmanager
def running(form: str) -> Iterator[None]:
    """Runs one of the `FORMS`."""
    backend = "native" if form == "native" else "fallback"
    with toptheta_npu.use_backend(backend, device="cpu"), pytest.MonkeyPatch.context() as patch:
        if form == "device":
            patch.setattr(page_sums, "host_can_read", lambda tensor: False)
        yield


@dataclass(eq=False)
class Sequence:
    """Tokens of a sequence, how many of them are in the cache, and the pages that hold them."""

    tokens: list[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list)


class PagedEngine:
    """A cache of whole numbers, whose float32 sums are exact in any order: a mean has one right bit pattern.

    As in vLLM, a full page can be had by whoever has the same tokens up to its end, from the step on that computes it,
    and until another sequence takes it. Rows follow from the tokens up to them.
    """

    def __init__(
        self, num_blocks: int, block_size: int, dtype: torch.dtype, layout: str = "heads first",
        form: str = "native", rows: int | None = None,
    ) -> None:  # fmt: skip
        self.block_size, self.form = block_size, form
        self.cache = empty_cache(num_blocks, block_size, dtype, layout)
        self.sums = PageSums(num_blocks, block_size, HEADS, HEAD_DIM, "cpu", rows)
        self.free = list(range(num_blocks))
        self.holders = [0] * num_blocks
        self.hashes: dict[tuple[int, ...], int] = {}
        self.sequences: list[Sequence] = []
        self._rows: dict[tuple[int, ...], Tensor] = {}
        self._random = torch.Generator().manual_seed(0)

    def row(self, tokens: list[int]) -> Tensor:
        """The V row [Hkv, D] of the last of these tokens."""
        key = tuple(tokens)
        if key not in self._rows:
            self._rows[key] = torch.randint(-8, 9, (HEADS, HEAD_DIM), generator=self._random).float()
        return self._rows[key]

    def room(self, sequence: Sequence) -> int:
        """Tokens that can still be computed."""
        return (len(sequence.pages) + len(self.free)) * self.block_size - sequence.computed

    def start(self, tokens: list[int]) -> Sequence:
        """A sequence that has the pages of another one with the same first tokens, but for its last token."""
        sequence = Sequence(list(tokens))
        for end in range(self.block_size, len(tokens), self.block_size):
            page = self.hashes.get(tuple(tokens[:end]))
            if page is None:
                break
            if page in self.free:
                self.free.remove(page)
            self.holders[page] += 1
            sequence.pages.append(page)
            sequence.computed = end
        self.sequences.append(sequence)
        return sequence

    def schedule(self, sequence: Sequence, count: int, drafts: list[int] | None = None) -> int:
        """Takes pages for the next tokens and drafts, and writes their rows, as far as there is room; how many."""
        tokens = [*sequence.tokens, *(drafts or [])]
        end = min(sequence.computed + count, sequence.computed + self.room(sequence), len(tokens))
        for position in range(sequence.computed, end):
            page = position // self.block_size
            if page == len(sequence.pages):
                sequence.pages.append(self._take_page())
            place = sequence.pages[page], slice(None), position % self.block_size
            self.cache[place] = self.row(tokens[: position + 1]).to(self.cache.dtype)
        for last in range(self.block_size, min(end, len(sequence.tokens)) + 1, self.block_size):
            self.hashes.setdefault(tuple(tokens[:last]), sequence.pages[last // self.block_size - 1])
        return end - sequence.computed

    def _take_page(self) -> int:
        page = self.free.pop(0)
        self.hashes = {tokens: held for tokens, held in self.hashes.items() if held != page}
        self.holders[page] = 1
        self.cache[page] = torch.nan
        return page

    def run(self, counts: dict[Sequence, int], wanted: bool = True) -> None:
        """Runs a step of sequences whose new rows are in the cache, and checks its means if they are wanted."""
        for sequence, count in counts.items():
            sequence.computed += count
        table, lengths = self.batch(list(counts))
        starts = torch.tensor([0, *counts.values()]).cumsum(0).int()
        plain = wanted and set(counts.values()) <= {1}
        new = NewRows(table, lengths, None if plain else starts, means=wanted)
        with running(self.form):
            means = self.sums.means(self.cache, new)
        expected = [self.expected(sequence) for sequence, count in counts.items() if wanted and count == 1]
        assert torch.equal(means, torch.stack(expected) if expected else means.new_zeros(0, HEADS, HEAD_DIM))

    def step(self, *counts: tuple[Sequence, int]) -> None:
        """`schedule` and `run`."""
        self.run({sequence: self.schedule(sequence, count) for sequence, count in counts})

    def drop(self, sequence: Sequence) -> None:
        """Ends or preempts a sequence; what its pages hold can be had until they are taken."""
        self.sequences.remove(sequence)
        for page in reversed(sequence.pages):
            self.holders[page] -= 1
            if not self.holders[page]:
                self.free.append(page)

    def batch(self, sequences: list[Sequence]) -> tuple[Tensor, Tensor]:
        """Block table and lengths."""
        width = max([len(sequence.pages) for sequence in sequences] + [0]) + 1
        table = torch.tensor(GARBAGE).repeat(len(sequences), width)[:, :width].to(torch.int32)
        for row, sequence in zip(table, sequences, strict=True):
            used = -(-sequence.computed // self.block_size)
            row[:used] = torch.tensor(sequence.pages[:used])
        return table, torch.tensor([sequence.computed for sequence in sequences], dtype=torch.int32)

    def check(self) -> None:
        """Checks the means of all sequences, by the sums as they are."""
        kept = self.sums._sums.clone()
        with running(self.form):
            means = self.sums.means(self.cache, NewRows(*self.batch(self.sequences)))
        self.sums._sums.copy_(kept)  # the check has made some
        for sequence, mean in zip(self.sequences, means, strict=True):
            assert torch.equal(mean, self.expected(sequence))

    def expected(self, sequence: Sequence) -> Tensor:
        """The mean of the rows of a sequence [Hkv, D], 0 without rows."""
        rows = [self.row(sequence.tokens[: end + 1]) for end in range(sequence.computed)]
        return torch.stack(rows).mean(0) if rows else torch.zeros(HEADS, HEAD_DIM)


def empty_cache(num_blocks: int, block_size: int, dtype: torch.dtype, layout: str) -> Tensor:
    """A cache [blocks, Hkv, block_size, D] full of NaN, laid out as an engine does."""
    if layout == "heads first":
        cache = torch.empty(num_blocks, HEADS, block_size, HEAD_DIM, dtype=dtype)
    elif layout == "rows first":
        cache = torch.empty(num_blocks, block_size, HEADS, HEAD_DIM, dtype=dtype).transpose(1, 2)
    else:  # K and V of a page side by side
        cache = torch.empty(num_blocks, HEADS, 2 * block_size, HEAD_DIM, dtype=dtype).chunk(2, dim=2)[1]
    return cache.fill_(torch.nan)


def rebuild(sums: PageSums, cache: Tensor, table: Tensor, lengths: Tensor) -> None:
    """Makes the sums of sequences whose first rows [B] are in the cache, as a step of their prompts does."""
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.long().cumsum(0)])
    sums.means(cache, NewRows(table, lengths, starts))
