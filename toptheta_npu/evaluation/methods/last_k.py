"""The most recent keys: a sliding window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...fallback.prefill import RowChunk, Selector
from .after_top_k import after_top_k
from .method import KEYS_OF_VALUES, Method
from .spec import MethodKind


def select_last_k(k: int) -> Selector:
    """Keep the k most recent keys; a row of at most k keys is dense."""

    def select(chunk: RowChunk) -> Tensor:
        row_end = (chunk.first + chunk.n).unsqueeze(-1)  # [B, 1, rows, 1]
        position = torch.arange(chunk.scores.shape[-1], device=chunk.scores.device)
        return (position >= row_end - k).expand_as(chunk.scores)

    return select


def last_k(k: int, targets: Sequence[int]) -> Method:
    """Attend to the k most recent keys; in the first layers to the largest of ``targets``, the k of each layer."""
    return Method("last-k", k, lambda model: after_top_k(model, targets, select_last_k(k)), KEYS_OF_VALUES)


KIND = MethodKind("last-k", "last-k", make=lambda spec, setting: last_k(setting.k, setting.targets))
