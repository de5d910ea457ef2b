"""Runs a model by what a rule selects, with the compensation and selection that several methods share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, cast, get_args

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_choice, check_modes
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
    """Change ``rule`` by which keys a head uses.

    Raises:
        TopThetaValueError: an unknown selection.
    """
    check_choice("selection", selection, get_args(Selection))
    return group_union(rule) if selection == "union" else rule


def compensation_of(compensated: bool | Compensation) -> Compensation:
    """Give the compensation of a method without thresholds: True is exact SDC and VMC, False neither.

    Raises:
        TopThetaValueError: it needs thresholds, or VMC has no mass to give back.
    """
    if isinstance(compensated, bool):
        return Compensation("exact" if compensated else "none", compensated)
    check_without_thresholds(compensated)
    check_modes("pre_softmax", compensated.sdc, compensated.gamma, None, "vmc" if compensated.vmc else None)
    return compensated


def check_without_thresholds(compensation: Compensation) -> None:
    """Raise a TopThetaValueError for an SDC that estimates the discarded mass from thresholds."""
    check_choice("sdc", compensation.sdc, ("none", "exact"))
