"""What Top-Theta is compared with, as selection rules for `prefill.select_and_attend`.

Each rule sees a chunk of scores and says which elements a row keeps, so that every method runs through
the same attention, compensation and counting. A row of at most k keys is dense under the rules with a k.
Top-Theta is among them, for `capped` and `with_first_and_last`, which change what another rule keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from .compensation import score_threshold
from .prefill import RowChunk, Selector

#: Which of the elements that passed a cap leaves in place.
Keep = Literal["recent", "first_and_last"]


def dense() -> Selector:
    """Keep everything."""
    return lambda chunk: chunk.scores > -torch.inf


def top_k(k: int) -> Selector:
    """Keep the k largest scores of every row."""

    def select(chunk: RowChunk) -> Tensor:
        if k >= chunk.scores.shape[-1]:
            return chunk.scores > -torch.inf
        largest = chunk.scores.topk(k, dim=-1).indices
        return torch.zeros_like(chunk.scores, dtype=torch.bool).scatter_(-1, largest, True)

    return select


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
        theta = score_threshold(thresholds(chunk.n[:, 0]).transpose(1, 2), chunk.lse, placement)
        return chunk.scores > theta.unsqueeze(-1)

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
        kept = rule(chunk) & (chunk.scores > -torch.inf)
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
        return top_k(k)(chunk._replace(scores=draw.where(chunk.scores > -torch.inf, -torch.inf)))

    return select


def blasst(scale_factor: float, tile: int = 128) -> Selector:
    """Skip a tile of keys whose largest score lies ln(lambda) below the running maximum, lambda = factor / n.

    The rule of BLASST (arXiv 2512.12087): the test depends on the order of the tiles, none on calibration
    per head or length.
    """

    def select(chunk: RowChunk) -> Tensor:
        padding = -chunk.scores.shape[-1] % tile
        padded = torch.nn.functional.pad(chunk.scores, (0, padding), value=-math.inf)
        tile_maximum = padded.unflatten(-1, (-1, tile)).amax(-1)
        running = tile_maximum.cummax(-1).values
        bound = (scale_factor / chunk.n.clamp_min(1)).log().unsqueeze(-1)
        warm: Tensor = tile_maximum - running >= bound
        return warm.repeat_interleave(tile, dim=-1)[..., : chunk.scores.shape[-1]]

    return select
