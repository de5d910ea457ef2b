"""Dequantises int8 pages for dense attention, in an engine whose own kernels cannot read int8."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..fallback.antiquant import dequantise
from ..ops import incremental_attention
from .drafts import copy_indices_to_device, tokens_of
from .layouts import Pages
from .steps import Step


def dequantise_pages(cache: Pages, pages: Tensor, to: Pages) -> None:
    """Dequantise some pages of an int8 cache into others.

    Args:
        cache: the int8 cache.
        pages: int64 [P], the pages of ``cache`` to dequantise.
        to: the cache to write; its pages 0 to P - 1 are written.
    """
    assert cache.antiquant is not None
    for numbers, scale, rows in zip(cache[:2], cache.antiquant[:2], to[:2], strict=True):
        rows[: len(pages)] = dequantise(numbers[pages], scale[:, None])


def renumbered(block_table: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
    """List the pages of some sequences, int64 [P], and the table of these sequences by their places in that list.

    Args:
        block_table: int32 [B, blocks].
        pages: int64 [B], how many each has.

    Example:
        >>> [each.tolist() for each in renumbered(torch.tensor([[7, 9], [4, -1]]), torch.tensor([2, 1]))]
        [[7, 9, 4], [[0, 1], [2, 0]]]
    """
    has = torch.arange(block_table.shape[1], device=pages.device) < pages[:, None]
    numbers = torch.zeros_like(block_table)
    numbers[has] = torch.arange(int(pages.sum()), dtype=numbers.dtype, device=numbers.device)
    return block_table[has].long(), numbers


def attend_to_all(step: Step, chosen: np.ndarray, query: Tensor, pages: Pages, scale: float, out: Tensor) -> None:
    """Write the rows of some sequences [P] of a step: by the operator, which keeps everything above -inf.

    Args:
        query, out: [T, Hq, D], of all tokens of the step.
        scale: factor of q·k.
    """
    assert pages.antiquant is not None
    starts = step.query_start_loc.numpy()
    tokens, sequences = tokens_of(starts, chosen), chosen.repeat(np.diff(starts)[chosen])
    rows, of, behind = copy_indices_to_device(query.device, tokens, sequences, starts[sequences + 1] - 1 - tokens)
    taken = query[rows]
    theta = taken.new_full(taken.shape[1:2], -torch.inf, dtype=torch.float32)
    result = incremental_attention(
        taken.unsqueeze(2), pages.keys, pages.values, theta, actual_seq_lengths=(step.seq_lens[of] - behind).int(),
        block_table=step.block_table[of], block_size=pages.keys.shape[2], num_key_value_heads=pages.keys.shape[1],
        scale_value=scale, **pages.antiquant._asdict(),
    )  # fmt: skip
    out[rows] = result.squeeze(2)
