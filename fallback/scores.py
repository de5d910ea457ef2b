"""The scores of a decode step: query times every valid K row, in float32 for every dtype of the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import KeyValueCache


def attention_scores(query: Tensor, cache: KeyValueCache, bounds: list[tuple[int, int]]) -> Tensor:
    """Compute scores [B, Hq, Sq, span] of the scaled query [B, Hq, Sq, D], -inf outside each sequence's bounds."""
    tokens = query.shape[2]
    grouped: Tensor = query.flatten(1, 2).unflatten(1, (cache.num_key_value_heads, -1))  # [B, Hkv, g * Sq, D]
    span = max([1, *(end for _, end in bounds)])
    scores = grouped.new_full((*grouped.shape[:3], span), -torch.inf)
    for sequence, (start, end) in enumerate(bounds):
        # convert only one KV head of K to float32 at a time, so that memory stays bounded
        for head, rows in enumerate(grouped[sequence]):
            scores[sequence, head, :, start:end] = rows @ cache.key.of_head(sequence, head, start, end).T
    by_token: Tensor = scores.flatten(1, 2).unflatten(1, (-1, tokens))
    return by_token
