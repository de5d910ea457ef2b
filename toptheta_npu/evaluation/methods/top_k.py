"""Top-k: the k largest scores of every row."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ...fallback.layout import count_true
from ...fallback.prefill import RowChunk, Selector
from .method import Method
from .selecting import by_selection, selected
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


def _make(spec: MethodSpec, setting: Setting) -> Method:
    targets = [setting.k] * len(setting.targets) if spec.options["layer_k"] == "equal" else setting.targets

    def rule_of(layer: int) -> Selector:
        return by_selection(select_top_k(targets[layer]), spec.selection)

    return Method(setting.family, setting.k, lambda model: selected(model, rule_of, spec.compensation, targets))


KIND = MethodKind(
    "top-k", "Top-k", _make,
    options={**COMPENSATED, "selection": SELECTION, "layer_k": Option("table", get_args(LayerK), "{} k")},
)  # fmt: skip
