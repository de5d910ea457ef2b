"""The methods of a comparison, each a context in which a model attends by that method.

All of them run through one harness, with the same counts. Methods without a rule for the denser first layers have Top-k
with exact SDC and VMC there, so that they differ from the others by what they do after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast, get_args

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import Sdc, check_choice, check_modes
from ...fallback import baselines
from ...fallback.prefill import Selector, select_and_attend
from ...models import Recording, apply_selection, sparsify
from ...models.fingerprint import check_table
from ...models.hook.attach import attached, check_model, dense_prompts
from ...models.hook.attention import AttentionCall
from ...models.sparse.selection import SelectionRule
from ...models.sparse.statistics import Recorder, make_recorders
from ...thresholds import ThresholdTable

#: The first layers attend more evenly and keep more elements (paper section "Thresholding Different Layers").
DENSER_LAYERS = 2

#: Which keys a query head uses: those that it selects itself, or those that any head of its KV group selects.
Selection = Literal["own", "union"]

#: What a method's name says of ``selection="union"``.
UNION_SUFFIX = ", group union"
#: The name of the method that selects pages.
PAGES = "pages (Quest)"

_SDC_NAMES = {"none": "", "exact": " + SDC", "exp_threshold": " + exp-threshold SDC", "offline": " + offline SDC"}


class KeyReads(NamedTuple):
    """How many K rows a method reads to choose: so many per key, and per V row that it then reads."""

    per_key: float = 1.0
    per_value_row: float = 0.0

    def rows(self, keys: float, value_rows: float) -> float:
        """K rows, from the mean number of keys and of V rows."""
        return self.per_key * keys + self.per_value_row * value_rows


#: A method that scores every key.
EVERY_KEY = KeyReads()
#: A method that knows its keys beforehand.
KEYS_OF_VALUES = KeyReads(per_key=0.0, per_value_row=1.0)


@dataclass(frozen=True)
class Compensation:
    """SDC, VMC, and the factor of ``sdc="exp_threshold"``, as in `sparsify`."""

    sdc: Sdc = "exact"
    vmc: bool = True
    gamma: float = 0.05

    def suffix(self, placement: str | None) -> str:
        """What a method's name says of it; after the softmax the denominator is exact by construction.

        Example:
            >>> Compensation().suffix("pre_softmax"), Compensation().suffix("post_softmax")
            (' + SDC + VMC', ' + VMC')
        """
        return ("" if placement == "post_softmax" else _SDC_NAMES[self.sdc]) + (" + VMC" if self.vmc else "")


@dataclass(frozen=True)
class Method:
    """A way to attend: ``enter(model)`` is the context in which the model does so.

    ``family`` groups the points of one curve; ``k`` is the number of elements asked for, None where
    the method has no such number; ``aims_at_k`` is False where k only names the Top-θ run to be matched.
    ``key_reads`` says which K rows it reads, ``settings`` what was found to match that run.
    """

    family: str
    k: int | None
    enter: Callable[[PreTrainedModel], AbstractContextManager[Recording]]
    aims_at_k: bool = True
    key_reads: KeyReads = EVERY_KEY
    settings: Mapping[str, float] = field(default_factory=dict, compare=False)

    @contextmanager
    def enter_decoding(self, model: PreTrainedModel) -> Iterator[Recording]:
        """The same for the decode steps of a generation: prompts, and all calls with several new tokens, are dense."""
        with self.enter(model) as recording, dense_prompts(model):
            yield recording


def dense() -> Method:
    """Every element."""
    return Method(
        "dense", None, lambda model: _selected(model, lambda layer: baselines.dense(), Compensation("none", False))
    )


def top_theta(
    table: ThresholdTable,
    k: int,
    *,
    compensated: bool | Compensation,
    selection: Selection = "own",
    family: str | None = None,
) -> Method:
    """Thresholds of ``table``.

    Args:
        compensated: True: exact SDC and VMC; False: neither, though after the softmax the denominator stays exact;
            or which of them.
        selection: ``"union"`` lets every head use the keys of its whole group, with exact SDC or none.

    Raises:
        TopThetaValueError: ``table`` has no such k; an unknown selection; or compensations that do not go together or
            not with ``table``.
    """
    compensation = _of_table(table, k, compensated)
    name = family or f"Top-θ {table.placement.split('_')[0]}{compensation.suffix(table.placement)}"
    if _is_union(selection):
        _check_without_thresholds(compensation)
        return Method(
            name + ("" if family else UNION_SUFFIX), k,
            lambda model: _by_thresholds(model, table, k, lambda rule, _: baselines.group_union(rule), compensation),
        )  # fmt: skip
    return Method(
        name,
        k,
        lambda model: sparsify(
            model, table, k=k, sdc=compensation.sdc, sdc_gamma=compensation.gamma, vmc=compensation.vmc,
            prefill="thresholded", statistics="summary",
        ),
    )  # fmt: skip


def top_k(
    k: int, targets: Sequence[int], *, compensated: bool | Compensation = True, selection: Selection = "own"
) -> Method:
    """The k largest of every row; ``targets`` is the k of each layer, the rest as in `top_theta`."""
    compensation, change = _without_table(compensated), _change(selection)
    return Method(
        f"Top-k{compensation.suffix(None)}{UNION_SUFFIX if selection == 'union' else ''}", k,
        lambda model: _selected(model, lambda layer: change(baselines.top_k(targets[layer])), compensation, targets),
    )  # fmt: skip


def top_theta_capped(
    table: ThresholdTable, k: int, keep: baselines.Keep, *, compensated: bool | Compensation = True
) -> Method:
    """Top-θ of which every row keeps at most the k of its layer: CAPK; with exact SDC or none."""
    check_choice("keep", keep, get_args(baselines.Keep))
    targets = table.layer_targets(k)
    return _changed(
        table, k, f", {keep} k", lambda rule, layer: baselines.capped(rule, targets[layer], keep), compensated
    )


def top_theta_with_first_and_last(table: ThresholdTable, k: int, first: int, last: int) -> Method:
    """Compensated Top-θ that always keeps the first (attention sinks) and the last keys of a row, too."""

    def change(rule: Selector, layer: int) -> Selector:
        return baselines.with_first_and_last(rule, first, last)

    return _changed(table, k, f", first {first} and last {last}", change, True)


def last_k(k: int, rows: int, targets: Sequence[int], *, compensated: bool | Compensation = False) -> Method:
    """The ``rows`` most recent keys, as many V rows as Top-θ reads at ``k``; Top-k in the first layers."""
    return _control("last-k", k, targets, baselines.last_k(rows), compensated, KEYS_OF_VALUES)


def random_k(
    k: int, rows: int, group: int, targets: Sequence[int], length: int, *, compensated: bool | Compensation = True
) -> Method:
    """Random keys, so many that a group of heads reads about ``rows`` V rows."""
    # the union of `group` draws of j out of n has n (1 - (1 - j/n)^group) elements
    draws = round(length * (1 - (1 - min(rows / length, 1.0)) ** (1 / group)))
    return _control("random-k", k, targets, baselines.random_k(max(draws, 1)), compensated, KEYS_OF_VALUES)


def blasst(
    k: int,
    scale_factor: float,
    targets: Sequence[int],
    *,
    tile: int = 128,
    compensated: bool | Compensation = False,
    selection: Selection = "own",
) -> Method:
    """Tiles of keys that are not negligible beside the largest score before them; Top-k in the first layers.

    Args:
        k: of the Top-θ run that it is matched to.
        scale_factor, tile: as in `toptheta_npu.fallback.baselines.blasst`.
        targets: the k of each layer, of which the first layers' are used.
        compensated, selection: as in `top_theta`.
    """
    rule = _change(selection)(baselines.blasst(scale_factor, tile))
    return _control("BLASST", k, targets, rule, compensated, EVERY_KEY, selection)


def pages(
    k: int,
    count: int,
    targets: Sequence[int],
    *,
    page: int = 16,
    compensated: bool | Compensation = False,
    selection: Selection = "own",
) -> Method:
    """``count`` pages of keys chosen by the least and the largest of their elements; Top-k in the first layers.

    Args:
        k: of the Top-θ run that it is matched to.
        count, page: as in `toptheta_npu.fallback.baselines.pages`.
        targets: the k of each layer, of which the first layers' are used.
        compensated, selection: as in `top_theta`; exact SDC makes it read every K row.
    """
    rule = _change(selection)(baselines.pages(count, page))
    return _control(PAGES, k, targets, rule, compensated, page_key_reads(page), selection)


def page_key_reads(page: int) -> KeyReads:
    """The least and the largest elements of every page, and the keys of the pages that are kept."""
    return KeyReads(2 / page, 1.0)


def key_reads_of(compensated: bool | Compensation, own: KeyReads) -> KeyReads:
    """The K rows that a method reads whose choice needs ``own``: exact SDC needs every score."""
    return EVERY_KEY if _without_table(compensated).sdc == "exact" else own


def value_mean_only(targets: Sequence[int]) -> Method:
    """The mean V row instead of attention, after Top-k in the first layers: no V row is read."""

    return Method(
        "V mean only", None, lambda model: _after_top_k(model, targets, _ValueMeanRule), key_reads=KeyReads(0.0, 0.0)
    )


class _ValueMeanRule:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def attend(self, call: AttentionCall) -> Tensor:
        # with scale 0 all scores are equal, and the softmax is the mean
        prompt = call.prompt | {"scale_value": 0.0}
        out, stats = select_and_attend(call.query, select=baselines.dense(), **prompt)
        self._recorder.record(call, stats.kept * 0, stats.value_rows * 0, stats.empty)
        return out


def _changed(
    table: ThresholdTable,
    k: int,
    name: str,
    change: Callable[[Selector, int], Selector],
    compensated: bool | Compensation,
) -> Method:
    compensation = _of_table(table, k, compensated)
    _check_without_thresholds(compensation)
    family = top_theta(table, k, compensated=compensation).family + name
    return Method(family, k, lambda model: _by_thresholds(model, table, k, change, compensation))


def _control(
    name: str,
    k: int,
    targets: Sequence[int],
    rule: Selector,
    compensated: bool | Compensation,
    key_reads: KeyReads,
    selection: Selection = "own",
) -> Method:
    compensation = _without_table(compensated)

    def rule_of(recorder: Recorder) -> SelectionRule:
        return SelectionRule(rule, compensation.sdc, compensation.vmc, recorder)

    family = f"{name}{compensation.suffix(None)}{UNION_SUFFIX if selection == 'union' else ''}"
    reads = key_reads_of(compensation, key_reads)
    return Method(family, k, lambda model: _after_top_k(model, targets, rule_of), False, reads)


@contextmanager
def _after_top_k(
    model: PreTrainedModel, targets: Sequence[int], rule_of: Callable[[Recorder], SelectionRule | _ValueMeanRule]
) -> Iterator[Recording]:
    """A rule after first layers that are the same for all: Top-k with exact SDC and VMC."""
    check_model(model)
    recorders = make_recorders(model, "summary")

    def in_layer(layer: int) -> SelectionRule | _ValueMeanRule:
        if layer < DENSER_LAYERS:
            return SelectionRule(baselines.top_k(targets[layer]), "exact", True, recorders[layer])
        return rule_of(recorders[layer])

    with attached(model, in_layer):
        yield Recording(recorders)


def _by_thresholds(
    model: PreTrainedModel,
    table: ThresholdTable,
    k: int,
    change: Callable[[Selector, int], Selector],
    compensation: Compensation,
) -> AbstractContextManager[Recording]:
    check_table(model, table)
    at_k = table.at(k)

    def rule_of(layer: int) -> Selector:
        def thresholds(lengths: Tensor) -> Tensor:
            return at_k.rows(layer, lengths.cpu()).to(lengths.device)

        return change(baselines.above_threshold(thresholds, table.placement), layer)

    return _selected(model, rule_of, compensation, table.layer_targets(k))


def _selected(
    model: PreTrainedModel,
    select_for_layer: Callable[[int], Selector],
    compensation: Compensation,
    targets: Sequence[int] | None = None,
) -> AbstractContextManager[Recording]:
    sdc, vmc = cast('Literal["none", "exact"]', compensation.sdc), compensation.vmc
    return apply_selection(model, select_for_layer, sdc=sdc, vmc=vmc, statistics="summary", targets=targets)


def _of_table(table: ThresholdTable, k: int, compensated: bool | Compensation) -> Compensation:
    table.layer_targets(k)  # an unusable k is to be known before anything runs
    if isinstance(compensated, bool):
        exact = compensated or table.placement == "post_softmax"
        return Compensation("exact" if exact else "none", compensated)
    mass = table.discarded_mass if compensated.sdc == "offline" else None
    check_modes(table.placement, compensated.sdc, compensated.gamma, mass, "vmc" if compensated.vmc else None)
    return compensated


def _without_table(compensated: bool | Compensation) -> Compensation:
    if isinstance(compensated, bool):
        return Compensation("exact" if compensated else "none", compensated)
    _check_without_thresholds(compensated)
    check_modes("pre_softmax", compensated.sdc, compensated.gamma, None, "vmc" if compensated.vmc else None)
    return compensated


def _check_without_thresholds(compensation: Compensation) -> None:
    check_choice("sdc", compensation.sdc, ("none", "exact"))


def _change(selection: Selection) -> Callable[[Selector], Selector]:
    return baselines.group_union if _is_union(selection) else lambda rule: rule


def _is_union(selection: Selection) -> bool:
    check_choice("selection", selection, get_args(Selection))
    return selection == "union"
