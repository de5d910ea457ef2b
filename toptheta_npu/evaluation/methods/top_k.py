"""Top-k: the k largest scores of every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ...fallback.layout import count_true
from ...fallback.prefill import RowChunk, Selector
from .method import UNION_SUFFIX, Compensation, Method, Selection
from .selecting import by_selection, compensation_of, selected
from .spec import COMPENSATED, SELECTION, MethodKind, MethodSpec, Option, Setting

#: Which k the first layers have: that of the threshold table, or the same as all others.
LayerK = Literal["equal", "table"]


def select_top_k(k: int) -> Selector:
    """Keep the k largest scores of every row; a row of at most k keys is dense."""

    def select(chunk: RowChunk) -> Tensor:
        if k >= chunk.scores.shape[-1]:
            return chunk.visible.expand_as(chunk.scores)
        return _largest(chunk.scores, k)

    return select


def _largest(scores: Tensor, k: int) -> Tensor:
    """Mark the k largest of the last dimension; of -inf any number."""
    if scores.device.type == "cpu":  # where topk takes six times as long
        place = scores.shape[-1] - k
        least = torch.from_numpy(np.partition(scores.numpy(), place, axis=-1)[..., place, None])
        keep = ~(scores < least)  # NaN is larger than all, as it is to topk
        if ((count_true(keep) == k) | (least[..., 0] == -torch.inf)).all():
            return keep
        # equal scores: k of them all the same
    indices = scores.topk(k, dim=-1, sorted=False).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, indices, True)


def top_k(
    k: int, targets: Sequence[int], *, compensated: bool | Compensation = True, selection: Selection = "own"
) -> Method:
    """Attend to the k largest of every row.

    Args:
        k: the name of the point.
        targets: the k of each layer.
        compensated, selection: as in `top_theta.top_theta`.
    """
    compensation = compensation_of(compensated)
    by_selection(select_top_k(k), selection)  # an unknown selection is to be known before anything runs
    return Method(
        f"Top-k{compensation.suffix(None)}{UNION_SUFFIX if selection == 'union' else ''}", k,
        lambda model: selected(
            model, lambda layer: by_selection(select_top_k(targets[layer]), selection), compensation, targets
        ),
    )  # fmt: skip


def _make(spec: MethodSpec, setting: Setting) -> Method:
    k, targets = setting.k, setting.targets
    if spec.options["layer_k"] == "equal":
        targets = [k] * len(targets)
    return top_k(k, targets, compensated=spec.compensation, selection=spec.selection)


KIND = MethodKind(
    "top-k", "Top-k", make=_make,
    options={**COMPENSATED, "selection": SELECTION, "layer_k": Option("table", get_args(LayerK), "{} k")},
)  # fmt: skip
