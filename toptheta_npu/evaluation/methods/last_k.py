"""The most recent keys: a sliding window; in the first layers the largest of each layer's k."""

from __future__ import annotations

import torch
from torch import Tensor

from ...fallback.prefill import RowChunk, Selector
from .after_top_k import after_top_k
from .method import KEYS_OF_VALUES, Method
from .spec import MethodKind, MethodSpec, Setting


def select_last_k(k: int) -> Selector:
    """Keep the k most recent keys; a row of at most k keys is dense."""

    def select(chunk: RowChunk) -> Tensor:
        row_end = (chunk.first + chunk.n).unsqueeze(-1)  # [B, 1, rows, 1]
        position = torch.arange(chunk.scores.shape[-1], device=chunk.scores.device)
        return (position >= row_end - k).expand_as(chunk.scores)

    return select


def _make(spec: MethodSpec, setting: Setting) -> Method:
    select = select_last_k(setting.k)
    return Method(setting.family, setting.k, lambda model: after_top_k(model, setting.targets, select), KEYS_OF_VALUES)


KIND = MethodKind("last-k", "last-k", _make)
