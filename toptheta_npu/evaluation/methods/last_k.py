"""The most recent keys: a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...fallback.prefill import RowChunk, Selector
from .control import control
from .method import KEYS_OF_VALUES, Compensation, Method
from .options import AS_PUBLISHED
from .spec import MethodKind, MethodSpec, Reference


def select_last_k(k: int) -> Selector:
    """Keep the k most recent keys; a row of at most k keys is dense."""

    def select(chunk: RowChunk) -> Tensor:
        row_end = (chunk.first + chunk.n).unsqueeze(-1)  # [B, 1, rows, 1]
        position = torch.arange(chunk.scores.shape[-1], device=chunk.scores.device)
        return (position >= row_end - k).expand_as(chunk.scores)

    return select


def last_k(k: int, rows: int, targets: Sequence[int], *, compensated: bool | Compensation = False) -> Method:
    """Attend to the ``rows`` most recent keys, as many V rows as Top-θ reads at ``k``; Top-k in the first layers."""
    return control("last-k", k, targets, select_last_k(rows), compensated, KEYS_OF_VALUES)


def _match(spec: MethodSpec, to: Reference) -> Method:
    """Take the mean number of V rows, rounded; rows that are longer read exactly that many."""
    rows = max(1, round(to.reads.value_rows_mean))
    return replace(last_k(to.k, rows, to.layer_targets, compensated=spec.compensation), settings={"rows": rows})


KIND = MethodKind("last-k", "last-k", match=_match, options=AS_PUBLISHED)
