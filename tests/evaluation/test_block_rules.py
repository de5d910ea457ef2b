"""Quest's pages of keys, and the union over a KV group."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from toptheta_npu.evaluation.methods.quest import select_pages
from toptheta_npu.evaluation.methods.selecting import group_union
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.fallback.prefill import Prompt, RowChunk, row_chunks, select_and_attend

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def inputs(length: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, heads, length, HEAD_DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))


def visible_rows(chunk: RowChunk) -> list[tuple[int, int, int, int, int]]:
    """Sequence, head, row, first visible key and number of visible keys of every row and head that is no padding."""
    rows = torch.cartesian_prod(*(torch.arange(size) for size in chunk.scores.shape[:3])).tolist()
    found = [(b, h, r, int(chunk.first[b, 0, 0]), int(chunk.n[b, 0, r])) for b, h, r in rows]
    return [row for row in found if row[-1]]


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
    (chunk,) = row_chunks(Prompt(query, key, value, **options))
    kept = select_pages(count, page)(chunk)
    for b, h, r, first, n in visible_rows(chunk):
        keys = key[b, h * KV_HEADS // HEADS, first : first + n]
        expected = pages_of_row(query[b, h, r], keys, count, page)
        assert kept[b, h, r, first : first + n].nonzero().flatten().tolist() == expected
    assert select_and_attend(Prompt(query, key, value, **options), select_pages(count, page))[0].isfinite().all()


def test_a_group_uses_every_key_that_one_of_its_heads_keeps() -> None:
    query, key, value = inputs(24)
    options: dict[str, Any] = {"key_start": torch.tensor([0, 5])}
    (chunk,) = row_chunks(Prompt(query, key, value, **options))
    rule = select_top_k(3)
    own = rule(chunk) & (chunk.scores > -math.inf)
    union = group_union(rule)(chunk)
    for head in range(HEADS):
        pair = head // 2 * 2
        assert torch.equal(union[:, head], own[:, pair] | own[:, pair + 1])
    assert not torch.equal(union, own)
    _, before = select_and_attend(Prompt(query, key, value, **options), rule)
    _, after = select_and_attend(Prompt(query, key, value, **options), group_union(rule))
    assert torch.equal(after.group_rows, before.group_rows)
    assert torch.equal(after.kept, before.group_rows.repeat_interleave(2, dim=1))


def test_a_head_that_keeps_nothing_uses_the_keys_of_its_group() -> None:
    query, key, value = inputs(24)

    def first_heads(chunk: RowChunk) -> Tensor:
        kept = chunk.scores > 0.2
        kept[:, 1::2] = False
        return kept

    (chunk,) = row_chunks(Prompt(query, key, value))
    _, stats = select_and_attend(Prompt(query, key, value), group_union(first_heads))
    expected = ~first_heads(chunk)[:, ::2].any(-1)
    assert torch.equal(stats.empty, expected.repeat_interleave(2, dim=1))
    assert torch.equal(stats.kept[:, ::2][~expected], stats.kept[:, 1::2][~expected])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: select_pages(0), "count: expected at least 1, the last page, got 0"),
        (lambda: select_pages(1, page=0), "page: expected at least 1 key, got 0"),
    ],
)
def test_unusable_sizes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
