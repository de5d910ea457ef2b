"""The methods of a comparison, each a context in which a model attends by that method.

All of them run through one harness, with the same first layers, compensations and counts; only the rule
that selects the elements differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from ..fallback import baselines
from ..fallback.prefill import Selector, select_and_attend
from ..models import Recording, apply_selection, sparsify
from ..models.attach import attached
from ..models.attention import AttentionCall
from ..models.selection import SelectionRule
from ..models.sparsify import make_recorders
from ..models.statistics import Recorder
from ..thresholds import ThresholdTable

#: The first layers attend more evenly and keep more elements (paper section "Thresholding Different Layers").
DENSER_LAYERS = 2


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
class Method:
    """A way to attend: ``enter(model)`` is the context in which the model does so.

    ``family`` groups the points of one curve; ``k`` is the number of elements asked for, None where
    the method has no such number; ``aims_at_k`` is False where k only names the Top-θ run to be matched.
    ``key_reads`` says which K rows it reads.
    """

    family: str
    k: int | None
    enter: Callable[[PreTrainedModel], AbstractContextManager[Recording]]
    aims_at_k: bool = True
    key_reads: KeyReads = EVERY_KEY


def dense() -> Method:
    """Every element."""
    return Method("dense", None, lambda model: _selected(model, lambda layer: baselines.dense(), compensated=False))


def top_theta(table: ThresholdTable, k: int, *, compensated: bool, family: str | None = None) -> Method:
    """Thresholds of ``table``; compensated: exact SDC and VMC, else neither."""
    post = table.placement == "post_softmax"
    name = family or f"Top-θ {'post' if post else 'pre'}{_suffix(post, compensated)}"
    return Method(
        name,
        k,
        lambda model: sparsify(
            model, table, k=k, sdc="exact" if post or compensated else "none", vmc=compensated,
            prefill="thresholded", statistics="summary",
        ),
    )  # fmt: skip


def top_k(k: int, targets: Sequence[int]) -> Method:
    """The k largest of every row, with exact SDC and VMC; ``targets`` is the k of each layer."""

    def rule_of(layer: int) -> Selector:
        return baselines.top_k(targets[layer])

    return Method("Top-k + SDC + VMC", k, lambda model: _selected(model, rule_of, compensated=True, targets=targets))


def top_theta_capped(table: ThresholdTable, k: int, keep: baselines.Keep) -> Method:
    """Compensated Top-θ of which every row keeps at most the k of its layer: CAPK."""
    targets = table.layer_targets(k)
    return _changed(table, k, f", {keep} k", lambda rule, layer: baselines.capped(rule, targets[layer], keep))


def top_theta_with_first_and_last(table: ThresholdTable, k: int, first: int, last: int) -> Method:
    """Compensated Top-θ that always keeps the first (attention sinks) and the last keys of a row, too."""

    def change(rule: Selector, layer: int) -> Selector:
        return baselines.with_first_and_last(rule, first, last)

    return _changed(table, k, f", first {first} and last {last}", change)


def last_k(k: int, rows: int, targets: Sequence[int]) -> Method:
    """The ``rows`` most recent keys, as many V rows as Top-θ reads at ``k``; Top-k in the first layers."""
    return _control("last-k", k, targets, baselines.last_k(rows), compensated=False)


def random_k(k: int, rows: int, group: int, targets: Sequence[int], length: int) -> Method:
    """Random keys with exact SDC and VMC, so many that a group of heads reads about ``rows`` V rows."""
    # the union of `group` draws of j out of n has n (1 - (1 - j/n)^group) elements
    draws = round(length * (1 - (1 - min(rows / length, 1.0)) ** (1 / group)))
    return _control("random-k + SDC + VMC", k, targets, baselines.random_k(max(draws, 1)), compensated=True)


def value_mean_only(targets: Sequence[int]) -> Method:
    """The mean V row instead of attention, after Top-k in the first layers: no V row is read."""

    @contextmanager
    def enter(model: PreTrainedModel) -> Iterator[Recording]:
        recorders = make_recorders(model, "summary")

        def rule_of(layer: int) -> SelectionRule | _ValueMeanRule:
            if layer < DENSER_LAYERS:
                return SelectionRule(baselines.top_k(targets[layer]), "exact", True, recorders[layer])
            return _ValueMeanRule(recorders[layer])

        with attached(model, rule_of):
            yield Recording(recorders)

    return Method("V mean only", None, enter, key_reads=KeyReads(0.0, 0.0))


class _ValueMeanRule:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def attend(self, call: AttentionCall) -> Tensor:
        # with scale 0 all scores are equal, and the softmax is the mean
        prompt = call.prompt | {"scale_value": 0.0}
        out, stats = select_and_attend(call.query, select=baselines.dense(), **prompt)
        self._recorder.record(call, stats.kept * 0, stats.value_rows * 0, stats.empty)
        return out


def _changed(table: ThresholdTable, k: int, name: str, change: Callable[[Selector, int], Selector]) -> Method:
    at_k = table.at(k)

    def rule_of(layer: int) -> Selector:
        return change(baselines.above_threshold(partial(at_k.rows, layer), table.placement), layer)

    family = top_theta(table, k, compensated=True).family + name
    targets = table.layer_targets(k)
    return Method(family, k, lambda model: _selected(model, rule_of, compensated=True, targets=targets))


def _control(family: str, k: int, targets: Sequence[int], rule: Selector, *, compensated: bool) -> Method:
    def rule_of(layer: int) -> Selector:
        return baselines.top_k(targets[layer]) if layer < DENSER_LAYERS else rule

    return Method(family, k, lambda model: _selected(model, rule_of, compensated=compensated), False, KEYS_OF_VALUES)


def _selected(
    model: PreTrainedModel,
    select_for_layer: Callable[[int], Selector],
    *,
    compensated: bool,
    targets: Sequence[int] | None = None,
) -> AbstractContextManager[Recording]:
    sdc: Literal["exact", "none"] = "exact" if compensated else "none"
    return apply_selection(model, select_for_layer, sdc=sdc, vmc=compensated, statistics="summary", targets=targets)


def _suffix(post: bool, compensated: bool) -> str:
    if not compensated:
        return ""
    return " + VMC" if post else " + SDC + VMC"
