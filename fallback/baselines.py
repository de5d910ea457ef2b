"""What Top-Theta is compared with, as selection rules for `prefill.select_and_attend`.

Each rule sees a chunk of scores and says which elements a row keeps, so that every method runs through
the same attention, compensation and counting. A row of at most k keys is dense under the rules with a k.
Top-Theta is among them, for `capped`, `with_first_and_last` and `group_union`, which change what another rule keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from .layout import any_true, count_true
from .prefill import RowChunk, Selector

#: Which of the elements that passed a cap leaves in place.
Keep = Literal["recent", "first_and_last"]


def dense() -> Selector:
    """Keep everything."""
    return lambda chunk: chunk.visible.expand_as(chunk.scores)


def top_k(k: int) -> Selector:
    """Keep the k largest scores of every row."""

    def select(chunk: RowChunk) -> Tensor:
        if k >= chunk.scores.shape[-1]:
            return chunk.visible.expand_as(chunk.scores)
        return _largest(chunk.scores, k)

    return select


def _largest(scores: Tensor, k: int) -> Tensor:
    """Which are the k largest of the last dimension; of -inf any number."""
    if scores.device.type == "cpu":  # where topk takes six times as long
        place = scores.shape[-1] - k
        least = torch.from_numpy(np.partition(scores.numpy(), place, axis=-1)[..., place, None])
        keep = ~(scores < least)  # NaN is larger than all, as it is to topk
        if ((count_true(keep) == k) | (least[..., 0] == -torch.inf)).all():
            return keep
        # equal scores: k of them all the same
    indices = scores.topk(k, dim=-1, sorted=False).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, indices, True)


def last_k(k: int) -> Selector:
    """Keep the k most recent keys: a sliding window."""

    def select(chunk: RowChunk) -> Tensor:
        row_end = (chunk.first + chunk.n).unsqueeze(-1)  # [B, 1, rows, 1]
        position = torch.arange(chunk.scores.shape[-1], device=chunk.scores.device)
        return (position >= row_end - k).expand_as(chunk.scores)

    return select


def above_threshold(thresholds: Callable[[Tensor], Tensor], placement: str) -> Selector:
    """Keep the elements above a threshold of each row; ``thresholds`` maps row lengths [B, rows] to [B, rows, Hq]."""

    def select(chunk: RowChunk) -> Tensor:
        return chunk.above(thresholds(chunk.n[:, 0]).transpose(1, 2), placement)

    return select


def capped(rule: Selector, k: int, keep: Keep = "recent") -> Selector:
    """At most k of the elements that ``rule`` keeps: the most recent ones, or half of the first and half of the last.

    An element that is dropped counts as discarded, be it the row's largest.

    Args:
        keep: ``"recent"`` is CAPK as the paper's authors coded it, ``"first_and_last"`` as their text has it; of an
            odd k the first elements get one more.

    Raises:
        ValueError: an unknown ``keep``.
    """
    if keep not in get_args(Keep):
        raise ValueError(f"keep: expected one of {', '.join(get_args(Keep))}, got {keep!r}")
    first = 0 if keep == "recent" else k - k // 2

    def select(chunk: RowChunk) -> Tensor:
        kept = rule(chunk) & chunk.visible
        from_first = kept.cumsum(-1)
        from_last = from_first[..., -1:] - from_first + 1
        return kept & ((from_first <= first) | (from_last <= k - first))

    return select


def with_first_and_last(rule: Selector, first: int, last: int) -> Selector:
    """What ``rule`` keeps, and always the first (attention sinks) and the last visible keys of every row."""

    def select(chunk: RowChunk) -> Tensor:
        position = torch.arange(chunk.scores.shape[-1], device=chunk.scores.device)
        row_start, row_end = chunk.first.unsqueeze(-1), (chunk.first + chunk.n).unsqueeze(-1)  # [B, 1, 1 or rows, 1]
        return rule(chunk) | (position < row_start + first) | (position >= row_end - last)

    return select


def random_k(k: int, seed: int = 0) -> Selector:
    """Keep k keys drawn at random, anew for every row, head and call of the rule."""
    generator = torch.Generator().manual_seed(seed)

    def select(chunk: RowChunk) -> Tensor:
        draw = torch.rand(chunk.scores.shape, generator=generator).to(chunk.scores.device)
        return top_k(k)(chunk._replace(scores=draw.where(chunk.visible, -torch.inf)))

    return select


def group_union(rule: Selector) -> Selector:
    """Every query head keeps what ``rule`` keeps for any head of its KV group, whose V rows are loaded anyway.

    The second variant of the paper's section "Impact of Grouped Query Attention". A head for which ``rule`` keeps
    nothing has no element of its own to stand in, unless its whole group keeps nothing.
    """

    def select(chunk: RowChunk) -> Tensor:
        kept = (rule(chunk) & chunk.visible).unflatten(1, (chunk.key.shape[1], -1))
        union: Tensor = any_true(kept, 2, keepdim=True).expand_as(kept).flatten(1, 2)
        return union

    return select


def blasst(scale_factor: float, tile: int = 128) -> Selector:
    """Skip a tile of keys whose largest score lies below the running maximum by more than ln(n / factor).

    The rule of BLASST (arXiv 2512.12087): a decode step goes through the tiles from the row's first key on and skips
    one if exp(its maximum - the running maximum) < lambda = factor / n. The running maximum includes the tile's own,
    so a tile that holds the largest score so far is kept, also where n is below the factor and lambda above 1.

    Raises:
        ValueError: ``tile`` is not positive, or ``scale_factor`` is negative or NaN.
    """
    if not scale_factor >= 0:
        raise ValueError(f"scale_factor: expected a number >= 0, got {scale_factor!r}")
    _check_block("tile", tile)
    bound = math.log(scale_factor) if scale_factor else -math.inf

    def select(chunk: RowChunk) -> Tensor:
        return _of_keys(largest_log_factor(chunk, tile) >= bound, chunk, tile)

    return select


def largest_log_factor(chunk: RowChunk, tile: int) -> Tensor:
    """The logarithm of the largest scale factor with which `blasst` keeps a tile, [B, Hq, rows, tiles].

    It is infinite for the tiles that are always kept; a tile without visible keys has -inf.
    """
    maximum = _in_blocks(chunk.scores, chunk, tile, -math.inf).amax(-1)
    running = maximum.cummax(-1).values
    factor = maximum - running + chunk.n.clamp_min(1).log().unsqueeze(-1)
    return factor.masked_fill(maximum == running, math.inf).masked_fill(maximum == -math.inf, -math.inf)


def pages(count: int, page: int = 16) -> Selector:
    """Keep ``count`` pages of keys: the last of the row, and those whose scores may be the largest.

    The rule of Quest (Tang et al. 2024, arXiv 2406.10774). Pages count from the row's first key on; the bound of a
    page is the sum over d of max(q_d min_d, q_d max_d), of the least and the largest key elements of the page. The
    last page, which may be incomplete, needs none. A row of at most ``count`` pages is dense.

    Raises:
        ValueError: ``count`` or ``page`` is not positive.
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1, the last page, got {count}")
    _check_block("page", page)

    def select(chunk: RowChunk) -> Tensor:
        return _of_keys(page_rank(chunk, page) < count, chunk, page)

    return select


def page_rank(chunk: RowChunk, page: int) -> Tensor:
    """In which order `pages` keeps the pages of each row, [B, Hq, rows, pages]: its last is 0, the best other one 1."""
    keys = _in_blocks(chunk.key.transpose(-1, -2), chunk, page, 0.0)  # [B, Hkv, D, pages, page]
    query = chunk.query.unflatten(1, (chunk.key.shape[1], -1))
    with torch.autocast(query.device.type, enabled=False):
        bound = torch.einsum("bkgrd,bkdp->bkgrp", query.clamp_min(0), keys.amax(-1))
        bound += torch.einsum("bkgrd,bkdp->bkgrp", query.clamp_max(0), keys.amin(-1))
    index = torch.arange(bound.shape[-1], device=bound.device)
    last = (chunk.n.unsqueeze(-1) - 1).div(page, rounding_mode="floor")  # [B, 1, rows, 1]
    # all pages before the last are complete; those behind it are the row's future or padding, of whatever content
    bound = bound.flatten(1, 2).masked_fill(index > last, -math.inf).masked_fill(index == last, math.inf)
    rank: Tensor = bound.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return rank


def block_sizes(chunk: RowChunk, size: int) -> Tensor:
    """How many visible keys each block of ``size`` keys has, from the first one on: [B, 1, rows, blocks]."""
    begin = size * torch.arange(-(-chunk.scores.shape[-1] // size), device=chunk.n.device)
    return (chunk.n.unsqueeze(-1) - begin).clamp(0, size)


def _in_blocks(values: Tensor, chunk: RowChunk, size: int, beyond: float) -> Tensor:
    """[B, ..., blocks, size] from [B, ..., S]: blocks of keys, from each sequence's first visible key on."""
    span = values.shape[-1]
    position = torch.arange(-(-span // size) * size, device=values.device) + chunk.first.unsqueeze(-1)  # [B, 1, 1, S']
    index = position.clamp_max(span - 1).expand(*values.shape[:-1], -1)
    moved: Tensor = values.gather(-1, index).masked_fill(position >= span, beyond).unflatten(-1, (-1, size))
    return moved


def _of_keys(blocks: Tensor, chunk: RowChunk, size: int) -> Tensor:
    """[B, Hq, rows, S] from [B, Hq, rows, blocks]: every key has what its block has; invisible keys have anything."""
    position = torch.arange(chunk.scores.shape[-1], device=blocks.device) - chunk.first.unsqueeze(-1)  # [B, 1, 1, S]
    index = position.div(size, rounding_mode="floor").clamp_min(0)
    return blocks.gather(-1, index.expand(*blocks.shape[:-1], -1))


def _check_block(name: str, size: int) -> None:
    if size < 1:
        raise ValueError(f"{name}: expected at least 1 key, got {size}")
