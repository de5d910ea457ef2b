"""Methods that need no thresholds and no k: they have Top-k with exact SDC and VMC in the denser first layers.

So they differ from the others by what they do after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from ...fallback.prefill import Selector
from ...models import Recording
from ...models.hook.attach import attached, check_model
from ...models.hook.attention import AttentionCall
from ...models.sparse.selection import SelectionRule
from ...models.sparse.statistics import Recorder, make_recorders
from .method import DENSER_LAYERS, UNION_SUFFIX, Compensation, KeyReads, Method, Selection
from .selecting import by_selection, compensation_of, key_reads_of
from .top_k import select_top_k


class LayerRule(Protocol):
    """How one layer attends."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Attend, [B, Hq, Q, D]."""


def control(
    name: str,
    k: int,
    targets: Sequence[int],
    rule: Selector,
    compensated: bool | Compensation,
    key_reads: KeyReads,
    selection: Selection = "own",
) -> Method:
    """Make a method of a rule for the layers after the first.

    Args:
        name: for people, without its compensations.
        k: of the Top-θ run that it is matched to.
        targets: the k of each layer, of which the first layers' are used.
        rule: says which elements a row keeps.
        compensated, selection: as in `top_theta.top_theta`.
        key_reads: the K rows that the rule reads to choose.
    """
    compensation, select = compensation_of(compensated), by_selection(rule, selection)

    def rule_of(recorder: Recorder) -> SelectionRule:
        return SelectionRule(select, compensation.sdc, compensation.vmc, recorder)

    family = f"{name}{compensation.suffix(None)}{UNION_SUFFIX if selection == 'union' else ''}"
    reads = key_reads_of(compensation, key_reads)
    return Method(family, k, lambda model: after_top_k(model, targets, rule_of), False, reads)


@contextmanager
def after_top_k(
    model: PreTrainedModel, targets: Sequence[int], rule_of: Callable[[Recorder], LayerRule]
) -> Iterator[Recording]:
    """Attend by a rule after first layers that are the same for all: Top-k with exact SDC and VMC."""
    check_model(model)
    recorders = make_recorders(model, "summary")

    def in_layer(layer: int) -> LayerRule:
        if layer < DENSER_LAYERS:
            return SelectionRule(select_top_k(targets[layer]), "exact", True, recorders[layer])
        return rule_of(recorders[layer])

    with attached(model, in_layer):
        yield Recording(recorders)
