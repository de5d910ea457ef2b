"""Top-θ: what lies above calibrated thresholds; also capped at k elements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal, get_args

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import SDC_MODES, check_choice, check_modes
from ...fallback.prefill import RowChunk, Selector
from ...models import Recording, sparsify
from ...models.fingerprint.model import check_table
from ...thresholds import ThresholdTable
from .method import UNION_SUFFIX, Compensation, Method, Selection
from .selecting import by_selection, check_without_thresholds, selected
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

    An element that is dropped counts as discarded, be it the row's largest.

    Args:
        rule: says which elements pass.
        k: the cap.
        keep: ``"recent"`` is CAPK as the paper's authors coded it, ``"first_and_last"`` as their text has it; of an
            odd k the first elements get one more.

    Raises:
        TopThetaValueError: an unknown ``keep``.
    """
    check_choice("keep", keep, get_args(Keep))
    first = 0 if keep == "recent" else k - k // 2

    def select(chunk: RowChunk) -> Tensor:
        kept = rule(chunk) & chunk.visible
        from_first = kept.cumsum(-1)
        from_last = from_first[..., -1:] - from_first + 1
        return kept & ((from_first <= first) | (from_last <= k - first))

    return select


def top_theta(
    table: ThresholdTable,
    k: int,
    *,
    compensated: bool | Compensation,
    selection: Selection = "own",
    family: str | None = None,
) -> Method:
    """Attend to what lies above the thresholds of ``table``.

    Args:
        table: the thresholds.
        k: elements to keep.
        compensated: True: exact SDC and VMC; False: neither, though after the softmax the denominator stays exact;
            or which of them.
        selection: ``"union"`` lets every head use the keys of its whole group, with exact SDC or none.
        family: the name for people, in place of its own.

    Raises:
        TopThetaValueError: ``table`` has no such k; an unknown selection; or compensations that do not go together or
            not with ``table``.
    """
    compensation = _compensation_of(table, k, compensated)
    name = family or f"Top-θ {table.placement.split('_')[0]}{compensation.suffix(table.placement)}"
    check_choice("selection", selection, get_args(Selection))
    if selection == "union":
        check_without_thresholds(compensation)
        return Method(
            name + ("" if family else UNION_SUFFIX), k,
            lambda model: _changed(model, table, k, lambda rule, _: by_selection(rule, "union"), compensation),
        )  # fmt: skip
    return Method(
        name,
        k,
        lambda model: sparsify(
            model, table, k=k, sdc=compensation.sdc, sdc_gamma=compensation.gamma, vmc=compensation.vmc,
            prefill="thresholded", statistics="summary",
        ),
    )  # fmt: skip


def _make(spec: MethodSpec, setting: Setting) -> Method:
    return top_theta(setting.table, setting.k, compensated=spec.compensation, selection=spec.selection)


def top_theta_capped(table: ThresholdTable, k: int, keep: Keep, *, compensated: bool | Compensation = True) -> Method:
    """Attend by Top-θ of which every row keeps at most the k of its layer: CAPK; with exact SDC or none."""
    check_choice("keep", keep, get_args(Keep))
    compensation = _compensation_of(table, k, compensated)
    check_without_thresholds(compensation)
    targets = table.layer_targets(k)
    family = top_theta(table, k, compensated=compensation).family + f", {keep} k"

    def change(rule: Selector, layer: int) -> Selector:
        return capped(rule, targets[layer], keep)

    return Method(family, k, lambda model: _changed(model, table, k, change, compensation))


def _changed(
    model: PreTrainedModel, table: ThresholdTable, k: int, change: _Change, compensation: Compensation
) -> AbstractContextManager[Recording]:
    check_table(model, table)
    at_k = table.at(k)

    def rule_of(layer: int) -> Selector:
        def thresholds(lengths: Tensor) -> Tensor:
            return at_k.rows(layer, lengths.cpu()).to(lengths.device)

        return change(select_above(thresholds, table.placement), layer)

    return selected(model, rule_of, compensation, table.layer_targets(k))


def _compensation_of(table: ThresholdTable, k: int, compensated: bool | Compensation) -> Compensation:
    table.layer_targets(k)  # an unusable k is to be known before anything runs
    if isinstance(compensated, bool):
        exact = compensated or table.placement == "post_softmax"
        return Compensation("exact" if exact else "none", compensated)
    mass = table.discarded_mass if compensated.sdc == "offline" else None
    check_modes(table.placement, compensated.sdc, compensated.gamma, mass, "vmc" if compensated.vmc else None)
    return compensated


KIND = MethodKind(
    "top-theta", "Top-θ", needs_table=True, make=_make,
    options={
        **COMPENSATED, "sdc": Option("exact", SDC_MODES), "gamma": Option(Compensation().gamma, label="gamma {:g}"),
        "selection": SELECTION,
    },
)  # fmt: skip
CAPPED = MethodKind(
    "top-theta-capped", "Top-θ", needs_table=True,
    make=lambda spec, setting: top_theta_capped(
        setting.table, setting.k, spec.options["keep"], compensated=spec.compensation
    ),
    options={**COMPENSATED, "keep": Option("recent", get_args(Keep), "{} k", always=True)},
)  # fmt: skip
