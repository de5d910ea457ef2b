"""Blocks of keys, counted from the first visible key of each sequence on."""

from __future__ import annotations

import torch
from torch import Tensor

from ...fallback.prefill import RowChunk


def in_blocks(values: Tensor, chunk: RowChunk, size: int, beyond: float) -> Tensor:
    """Cut [B, ..., S] into blocks of keys [B, ..., blocks, size], with ``beyond`` where there are no more keys."""
    span = values.shape[-1]
    position = torch.arange(-(-span // size) * size, device=values.device) + chunk.first.unsqueeze(-1)  # [B, 1, 1, S']
    index = position.clamp_max(span - 1).expand(*values.shape[:-1], -1)
    moved: Tensor = values.gather(-1, index).masked_fill(position >= span, beyond).unflatten(-1, (-1, size))
    return moved


def of_keys(blocks: Tensor, chunk: RowChunk, size: int) -> Tensor:
    """Give every key what its block has: [B, Hq, rows, S] from [B, Hq, rows, blocks]; invisible keys have anything."""
    position = torch.arange(chunk.scores.shape[-1], device=blocks.device) - chunk.first.unsqueeze(-1)  # [B, 1, 1, S]
    index = position.div(size, rounding_mode="floor").clamp_min(0)
    return blocks.gather(-1, index.expand(*blocks.shape[:-1], -1))
