"""Top-θ: keeps the elements above calibrated thresholds, optionally capped at k elements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal, get_args

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import SDC_MODES, check_modes
from ...fallback.prefill import RowChunk, Selector
from ...models import Recording, sparsify
from ...models.fingerprint.model import check_table
from .method import Compensation, Method
from .selecting import by_selection, selected
from .spec import COMPENSATED, SELECTION, MethodKind, MethodSpec, Option, Setting

#: Which of the elements that passed a cap leaves in place.
Keep = Literal["recent", "first_and_last"]
#: Changes the rule of a layer.
_Change = Callable[[Selector, int], Selector]


def select_above(thresholds: Callable[[Tensor], Tensor], placement: str) -> Selector:
    """Keep the elements above a threshold of each row; ``thresholds`` maps row lengths [B, rows] to [B, rows, Hq]."""

    def select(chunk: RowChunk) -> Tensor:
        return chunk.above(thresholds(chunk.n[:, 0]).transpose(1, 2), placement)

    return select


def capped(rule: Selector, k: int, keep: Keep = "recent") -> Selector:
    """Keep at most k of the elements that ``rule`` keeps: the most recent, or half of the first and half of the last.

    A dropped element counts as discarded, even the row's largest.

    Args:
        rule: rule that selects the elements to cap.
        k: the cap.
        keep: ``"recent"`` is CAPK as in the paper's code, ``"first_and_last"`` as in its text. With an odd k, one more
            of the first elements is kept.
    """
    first = 0 if keep == "recent" else k - k // 2

    def select(chunk: RowChunk) -> Tensor:
        kept = rule(chunk) & chunk.visible
        from_first = kept.cumsum(-1)
        from_last = from_first[..., -1:] - from_first + 1
        return kept & ((from_first <= first) | (from_last <= k - first))

    return select


def _make(spec: MethodSpec, setting: Setting) -> Method:
    table, k, compensation = setting.table, setting.k, _checked(spec, setting)
    if spec.selection == "union":
        return _changed(setting, compensation, lambda rule, _: by_selection(rule, "union"))
    return Method(
        setting.family, k,
        lambda model: sparsify(
            model, table, k=k, sdc=compensation.sdc, sdc_gamma=compensation.gamma, vmc=compensation.vmc,
            prefill="thresholded", statistics="summary",
        ),
    )  # fmt: skip


def _make_capped(spec: MethodSpec, setting: Setting) -> Method:
    """Keep at most the k of each layer in a row: CAPK."""
    targets = setting.table.layer_targets(setting.k)
    keep = spec.options["keep"]
    return _changed(setting, _checked(spec, setting), lambda rule, layer: capped(rule, targets[layer], keep))


def _changed(setting: Setting, compensation: Compensation, change: _Change) -> Method:
    table, k = setting.table, setting.k

    def enter(model: PreTrainedModel) -> AbstractContextManager[Recording]:
        check_table(model, table)
        at_k = table.at(k)

        def rule_of(layer: int) -> Selector:
            def thresholds(lengths: Tensor) -> Tensor:
                return at_k.rows(layer, lengths.cpu()).to(lengths.device)

            return change(select_above(thresholds, table.placement), layer)

        return selected(model, rule_of, compensation, table.layer_targets(k))

    return Method(setting.family, k, enter)


def _checked(spec: MethodSpec, setting: Setting) -> Compensation:
    """Check that k and compensations go with the table: what cannot run is to be known before anything does."""
    table, found = setting.table, spec.compensation
    table.layer_targets(setting.k)
    mass = table.discarded_mass if found.sdc == "offline" else None
    check_modes(table.placement, found.sdc, found.gamma, mass, "vmc" if found.vmc else None)
    return found


KIND = MethodKind(
    "top-theta", "Top-θ", _make, needs_table=True,
    options={
        **COMPENSATED, "sdc": Option("exact", SDC_MODES), "gamma": Option(Compensation().gamma, label="gamma {:g}"),
        "selection": SELECTION,
    },
)  # fmt: skip
CAPPED = MethodKind(
    "top-theta-capped", "Top-θ", _make_capped, needs_table=True,
    options={**COMPENSATED, "keep": Option("recent", get_args(Keep), "{} k", always=True)},
)  # fmt: skip
