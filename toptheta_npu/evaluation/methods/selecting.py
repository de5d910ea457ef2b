"""Runs a model by what a rule selects, with the compensation and selection that several methods share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, cast

from torch import Tensor
from transformers import PreTrainedModel

from ...fallback.layout import any_true
from ...fallback.prefill import RowChunk, Selector
from ...models import Recording, apply_selection
from .method import Compensation, Selection


def selected(
    model: PreTrainedModel,
    select_for_layer: Callable[[int], Selector],
    compensation: Compensation,
    targets: Sequence[int] | None = None,
) -> AbstractContextManager[Recording]:
    """Attend by one rule per layer; ``targets`` are what the layers' rows aim at."""
    sdc, vmc = cast('Literal["none", "exact"]', compensation.sdc), compensation.vmc
    return apply_selection(model, select_for_layer, sdc=sdc, vmc=vmc, statistics="summary", targets=targets)


def group_union(rule: Selector) -> Selector:
    """Let every query head keep what ``rule`` keeps for any head of its KV group, whose V rows are loaded anyway.

    The second variant of the paper's section "Impact of Grouped Query Attention". A head for which ``rule`` keeps
    nothing has no element of its own to stand in, unless its whole group keeps nothing.
    """

    def select(chunk: RowChunk) -> Tensor:
        kept = (rule(chunk) & chunk.visible).unflatten(1, (chunk.key.shape[1], -1))
        union: Tensor = any_true(kept, 2, keepdim=True).expand_as(kept).flatten(1, 2)
        return union

    return select


def by_selection(rule: Selector, selection: Selection) -> Selector:
    """Change ``rule`` by which keys a head uses."""
    return group_union(rule) if selection == "union" else rule
