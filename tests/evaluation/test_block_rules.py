"""Rules that keep blocks of keys, BLASST's tiles and Quest's pages, and the union over a KV group."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toptheta_npu.evaluation.methods.blasst import select_tiles
from toptheta_npu.evaluation.methods.blocks import block_sizes
from toptheta_npu.evaluation.methods.quest import page_rank, select_pages
from toptheta_npu.evaluation.methods.selecting import group_union
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.fallback.prefill import RowChunk, Selector, row_chunks, select_and_attend

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def inputs(length: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, heads, length, HEAD_DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))


def scored(scores: list[float]) -> RowChunk:
    """The last row of a head of dimension 1 whose scores are these."""
    key = torch.tensor(scores).view(1, 1, -1, 1)
    (chunk,) = row_chunks(torch.ones(1, 1, 1, 1), key, scale_value=1.0)
    return chunk


def kept_by(rule: Selector, chunk: RowChunk) -> list[int]:
    return (rule(chunk) & (chunk.scores > -math.inf))[0, 0, 0].nonzero().flatten().tolist()


def visible_rows(chunk: RowChunk) -> list[tuple[int, int, int, int, int]]:
    """Sequence, head, row, first visible key and number of visible keys of every row and head that is no padding."""
    rows = torch.cartesian_prod(*(torch.arange(size) for size in chunk.scores.shape[:3])).tolist()
    found = [(b, h, r, int(chunk.first[b, 0, 0]), int(chunk.n[b, 0, r])) for b, h, r in rows]
    return [row for row in found if row[-1]]


def blasst_of_row(scores: list[float], factor: float, tile: int) -> list[int]:
    """The rule as a decode kernel goes through it."""
    running, kept = -math.inf, []
    for begin in range(0, len(scores), tile):
        here = scores[begin : begin + tile]
        running = max(running, *here)
        if max(here) == running or max(here) - running >= math.log(factor / len(scores)):
            kept += range(begin, begin + len(here))
    return kept


@pytest.mark.parametrize(
    ("factor", "kept"),
    [
        # n = 8 and exp(score) 4 2 | 1 .5 | 32 8 | 2 4: the tiles' largest over the running one are 1, 1/4, 1 and 1/8
        (0.0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (0.9, [0, 1, 2, 3, 4, 5, 6, 7]),  # lambda = 0.11
        (1.1, [0, 1, 2, 3, 4, 5]),  # 0.14
        (1.9, [0, 1, 2, 3, 4, 5]),  # 0.24
        (2.1, [0, 1, 4, 5]),  # 0.26
        (1000.0, [0, 1, 4, 5]),  # a lambda above 1 skips no tile that raises the maximum
    ],
)
def test_blasst_on_a_row_by_hand(factor: float, kept: list[int]) -> None:
    scores = torch.tensor([4, 2, 1, 0.5, 32, 8, 2, 4]).log().tolist()
    assert kept_by(select_tiles(factor, tile=2), scored(scores)) == kept


def test_blasst_depends_on_the_order_of_the_tiles() -> None:
    """A small tile is kept before the large one, at whose sight it would be skipped."""
    rule = select_tiles(2.0, tile=1)  # n = 4: lambda = 0.5
    assert kept_by(rule, scored(torch.tensor([1.0, 2.0, 4.0, 8.0]).log().tolist())) == [0, 1, 2, 3]
    assert kept_by(rule, scored(torch.tensor([8.0, 4.1, 2.0, 1.0]).log().tolist())) == [0, 1]


def test_the_last_tile_of_blasst_may_be_incomplete() -> None:
    scores = [3.0, 0.0, 0.0, -9.0, 3.5]
    assert kept_by(select_tiles(1.0, tile=2), scored(scores)) == [0, 1, 4]
    assert kept_by(select_tiles(1.0, tile=3), scored(scores)) == [0, 1, 2, 3, 4]


@given(
    length=st.integers(1, 40), start=st.integers(0, 20), tile=st.integers(1, 9), factor=st.floats(0.01, 100.0),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_blasst_follows_the_kernel_row_by_row(length: int, start: int, tile: int, factor: float, seed: int) -> None:
    query, key, _ = inputs(length, seed)
    starts = torch.tensor([0, min(start, length - 1)])
    (chunk,) = row_chunks(3 * query, key, key_start=starts)
    kept = select_tiles(factor, tile)(chunk)
    for b, h, r, first, n in visible_rows(chunk):
        scores = chunk.scores[b, h, r, first : first + n].tolist()
        assert kept[b, h, r, first : first + n].nonzero().flatten().tolist() == blasst_of_row(scores, factor, tile)


def pages_of_row(query: Tensor, keys: Tensor, count: int, page: int) -> list[int]:
    """Quest in plain loops: query [D], keys [n, D] of one row."""
    begins = list(range(0, len(keys), page))
    bounds = {}
    for begin in begins[:-1]:
        bound = 0.0
        for d in range(len(query)):
            elements = [keys[j, d].item() for j in range(begin, begin + page)]
            bound += max(query[d].item() * min(elements), query[d].item() * max(elements))
        bounds[begin] = bound
    best = sorted(bounds, key=lambda begin: -bounds[begin])[: count - 1]
    return sorted(j for begin in [*best, begins[-1]] for j in range(begin, min(begin + page, len(keys))))


@pytest.mark.parametrize("count", [1, 2, 3, 20])
@pytest.mark.parametrize("page", [1, 4, 5, 16])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_pages_are_those_of_plain_loops(count: int, page: int, padded: bool) -> None:
    length = 27
    query, key, value = inputs(length)
    options: dict[str, Tensor] = {}
    if padded:
        options = {"actual_seq_lengths": torch.tensor([length, 17]), "key_start": torch.tensor([3, 6])}
        key, value = key.clone(), value.clone()
        for garbage in (key, value):
            garbage[0, :, :3], garbage[1, :, :6], garbage[1, :, 23:] = math.nan, math.inf, math.nan
    (chunk,) = row_chunks(query, key, **options)
    kept = select_pages(count, page)(chunk)
    for b, h, r, first, n in visible_rows(chunk):
        keys = key[b, h * KV_HEADS // HEADS, first : first + n]
        expected = pages_of_row(query[b, h, r], keys, count, page)
        assert kept[b, h, r, first : first + n].nonzero().flatten().tolist() == expected
    assert select_and_attend(query, key, value, select_pages(count, page), **options)[0].isfinite().all()


def test_pages_by_hand() -> None:
    """Two dimensions: the bound takes the largest of the first and, for a negative query, the least of the second."""
    key = torch.tensor([[1.0, 0.0], [0.0, -1.0], [1.5, 1.0], [1.5, 1.0], [0.0, 0.0]]).view(1, 1, 5, 2)
    query = torch.tensor([1.0, -1.0]).view(1, 1, 1, 2)
    (chunk,) = row_chunks(query, key, scale_value=1.0)
    # scores 1 1 | .5 .5 | 0; bounds 1 + 1 and 1.5 - 1
    assert page_rank(chunk, 2)[0, 0, 0].tolist() == [1, 2, 0]
    assert kept_by(select_pages(1, page=2), chunk) == [4]
    assert kept_by(select_pages(2, page=2), chunk) == [0, 1, 4]
    assert kept_by(select_pages(3, page=2), chunk) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rule", [select_pages(2, page=4), select_tiles(1.0, tile=4)], ids=["pages", "blasst"])
def test_a_row_sees_neither_the_future_nor_padding(rule: Selector) -> None:
    """Every row keeps what it keeps as the last row, without padding in front."""
    length, start = 21, 5
    query, key, value = inputs(length)
    starts = torch.full((2,), start)
    out, stats = select_and_attend(3 * query, key, value, rule, key_start=starts, sdc="none")
    for row in range(start, length):
        alone, kept = select_and_attend(
            3 * query[:, :, row : row + 1], key[:, :, start : row + 1], value[:, :, start : row + 1], rule, sdc="none"
        )
        assert torch.equal(kept.kept[:, :, 0], stats.kept[:, :, row])
        torch.testing.assert_close(alone[:, :, 0], out[:, :, row])


@pytest.mark.parametrize("page", [4, 16])
def test_block_sizes_count_visible_keys(page: int) -> None:
    query, key, _ = inputs(27)
    (chunk,) = row_chunks(query, key, key_start=torch.tensor([0, 6]))
    sizes = block_sizes(chunk, page)
    assert torch.equal(sizes.sum(-1), chunk.n)
    assert sizes[1, 0, 20].tolist() == [min(page, max(0, 15 - begin)) for begin in range(0, 27, page)]


def test_a_group_uses_every_key_that_one_of_its_heads_keeps() -> None:
    query, key, value = inputs(24)
    options: dict[str, Any] = {"key_start": torch.tensor([0, 5])}
    (chunk,) = row_chunks(query, key, **options)
    rule = select_top_k(3)
    own = rule(chunk) & (chunk.scores > -math.inf)
    union = group_union(rule)(chunk)
    for head in range(HEADS):
        pair = head // 2 * 2
        assert torch.equal(union[:, head], own[:, pair] | own[:, pair + 1])
    assert not torch.equal(union, own)
    _, before = select_and_attend(query, key, value, rule, **options)
    _, after = select_and_attend(query, key, value, group_union(rule), **options)
    assert torch.equal(after.group_rows, before.group_rows)
    assert torch.equal(after.kept, before.group_rows.repeat_interleave(2, dim=1))


def test_a_head_that_keeps_nothing_uses_the_keys_of_its_group() -> None:
    query, key, value = inputs(24)

    def first_heads(chunk: RowChunk) -> Tensor:
        kept = chunk.scores > 0.2
        kept[:, 1::2] = False
        return kept

    (chunk,) = row_chunks(query, key)
    _, stats = select_and_attend(query, key, value, group_union(first_heads))
    expected = ~first_heads(chunk)[:, ::2].any(-1)
    assert torch.equal(stats.empty, expected.repeat_interleave(2, dim=1))
    assert torch.equal(stats.kept[:, ::2][~expected], stats.kept[:, 1::2][~expected])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: select_tiles(-1.0), "scale_factor: expected a number >= 0, got -1.0"),
        (lambda: select_tiles(math.nan), "scale_factor: expected a number >= 0, got nan"),
        (lambda: select_tiles(1.0, tile=0), "tile: expected at least 1 key, got 0"),
        (lambda: select_pages(0), "count: expected at least 1, the last page, got 0"),
        (lambda: select_pages(1, page=0), "page: expected at least 1 key, got 0"),
    ],
)
def test_unusable_sizes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
