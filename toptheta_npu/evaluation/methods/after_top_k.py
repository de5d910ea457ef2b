"""Methods that need no thresholds: they have Top-k with exact SDC and VMC in the denser first layers.

So they differ from the others by what they do after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from transformers import PreTrainedModel

from ...fallback.prefill import Selector
from ...models import Recording
from ...models.hook.attach import attached, check_model
from ...models.sparse.selection import SelectionRule
from ...models.sparse.statistics import make_recorders
from .method import DENSER_LAYERS
from .top_k import select_top_k


@contextmanager
def after_top_k(model: PreTrainedModel, targets: Sequence[int], select: Selector) -> Iterator[Recording]:
    """Attend by ``select``, without compensation, after first layers that keep the k largest of ``targets``."""
    check_model(model)
    recorders = make_recorders(model, "summary", targets)

    def in_layer(layer: int) -> SelectionRule:
        if layer < DENSER_LAYERS:
            return SelectionRule(select_top_k(targets[layer]), "exact", True, recorders[layer])
        return SelectionRule(select, "none", False, recorders[layer])

    with attached(model, in_layer):
        yield Recording(recorders)
