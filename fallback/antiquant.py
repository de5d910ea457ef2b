"""Quantises and dequantises int8 caches, for every kind of scales.

Mode names and numbers match ``torch_npu.npu_fused_infer_attention_score``.
"""

from __future__ import annotations

import torch
from torch import Tensor

PER_CHANNEL, PER_TOKEN_AND_HEAD, PER_TOKEN_AND_HEAD_PAGED = 0, 3, 5


def dequantise(rows: Tensor, scale: Tensor | None) -> Tensor:
    """Multiply K or V rows [..., D] by their scales [..., 1 or D], in float32; rows without scales stay as they are."""
    return rows.float() if scale is None else rows.float() * scale.float()


def scale_rows(scale: Tensor, mode: int, num_key_value_heads: int, head_dim: int) -> Tensor:
    """View the scales of a cache so that they broadcast to its rows [B or blocks, Hkv, S or block_size, D].

    Args:
        scale: mode 0: any shape that broadcasts to [Hkv, D], or [Hkv, 1, D] or [Hkv * D]. Other modes:
            [B or blocks, Hkv, S or block_size].
    """
    if mode == PER_CHANNEL:
        return per_channel(scale, num_key_value_heads, head_dim)[None, :, None]
    return scale[..., None]


def per_channel(scale: Tensor, num_key_value_heads: int, head_dim: int) -> Tensor:
    """View scales of mode 0 as [Hkv, D]."""
    shape = num_key_value_heads, head_dim
    if scale.dim() == 3:
        scale = scale[:, 0]
    elif scale.dim() == 1 and len(scale) == num_key_value_heads * head_dim:
        scale = scale.view(shape)
    return scale.expand(shape)


def quantise(rows: Tensor, scale: Tensor) -> Tensor:
    """Round K or V rows [..., D] to int8 with given scales [..., 1 or D]; a scale of 0 gives 0."""
    scale = scale.float()
    return (rows.float() / scale.where(scale != 0, torch.inf)).round_().clamp_(-127, 127).to(torch.int8)


def token_scale(rows: Tensor) -> Tensor:
    """Compute one scale per row [..., D], float32 [...], which maps the row's largest magnitude to 127."""
    return rows.abs().amax(-1).float() / 127
