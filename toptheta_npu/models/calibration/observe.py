"""Runs a model over calibration texts and observes its attention scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...calibration.blocks import ScoreBlocks, ScoresAtHand
from ...calibration.row_statistics import take_rows
from ...errors import TopThetaTypeError, TopThetaValueError, shown
from ..hook.attach import attached, check_switches
from ..hook.attention import AttentionCall, Rule
from .sequence_rows import BlockThreads, RowsOnDevice, SequenceRows, TopK, keep_largest

#: What a layer passes on: [B, Hq, Q, D].
Attend = Callable[[AttentionCall], Tensor]
#: Called with the number of sequences done.
Progress = Callable[[int], None]


def check_options(progress: object, provenance: object = None, **switches: object) -> None:
    """Raise TopThetaTypeError for an option of the wrong type."""
    check_switches(**switches)
    if progress is not None and not callable(progress):
        raise TopThetaTypeError("progress", "a function of the sequences done", shown(progress))
    if provenance is not None and not (
        isinstance(provenance, Mapping) and all(isinstance(text, str) for pair in provenance.items() for text in pair)
    ):
        raise TopThetaTypeError("provenance", "a mapping of str to str", shown(provenance))


class Watch(Protocol):
    """An observer of rows, such as a `Calibrator`: any number of threads look, one adds."""

    def look(self, layer: int, blocks: ScoreBlocks, learnable_sink: Tensor | None = None) -> Any:
        """Look at rows of a layer. ``learnable_sink`` [Hq] is one more logit of every row."""

    def add(self, seen: Any) -> None:
        """Add the result of a look."""


def observe_model(
    model: PreTrainedModel,
    texts: Sequence[Tensor],
    rows_of_sequence: Callable[[int, int], Tensor],
    watch: Watch,
    attend_of: Callable[[int], Attend | TopK],
    progress: Progress | None,
) -> None:
    """Run every text through the model and show ``watch`` the scores of its chosen rows, layer by layer.

    Results are added in the order of the rows, for any number of threads.
    """

    def rule_of(layer: int, chosen: ChosenRows, threads: BlockThreads) -> _ObservingRule | _TopKRule:
        attend = attend_of(layer)
        if isinstance(attend, TopK):
            return _TopKRule(layer, chosen, watch, threads, attend)
        return _ObservingRule(layer, chosen, watch, threads, attend)

    run_texts(model, texts, rows_of_sequence, rule_of, progress)


def run_texts(
    model: PreTrainedModel,
    texts: Sequence[Tensor],
    rows_of_sequence: Callable[[int, int], Tensor],
    rule_of: Callable[[int, ChosenRows, BlockThreads], Rule],
    progress: Progress | None,
) -> None:
    """Run every text through the model. The rule of each layer knows which rows were chosen.

    Args:
        model: as in `calibrate`.
        texts: int64 [n], the tokens of each sequence.
        rows_of_sequence: chooses rows by their number in the sequence and by the sequence's index.
        rule_of: makes the rule of a layer.
        progress: called with the number of sequences done.
    """
    with BlockThreads() as threads:
        chosen = ChosenRows()
        with attached(model, lambda layer: rule_of(layer, chosen, threads)), torch.no_grad():
            for index, tokens in enumerate(texts):
                chosen.rows = rows_of_sequence(len(tokens), index)
                # without the head: the logits of a whole prompt are large, and nothing reads them
                model.base_model(input_ids=on_device_of(model, tokens)[None], use_cache=False)
                if progress is not None:
                    progress(index + 1)


class ChosenRows:
    """The chosen rows of the current sequence, int64 [chosen], ascending, on the CPU."""

    rows: Tensor


@dataclass(frozen=True)
class _ObservingRule:
    """Shows the chosen rows, and attends by another rule."""

    layer: int
    chosen: ChosenRows
    watch: Watch
    threads: BlockThreads
    passes_on: Attend

    def attend(self, call: AttentionCall) -> Tensor:
        sequence = SequenceRows(call)

        def look(rows: Tensor) -> Any:
            at_hand = ScoresAtHand(sequence.scores(rows), sequence.lengths(rows))
            return self.watch.look(self.layer, at_hand, sequence.learnable_sink)

        with naming_layer(self.layer):
            if call.query.is_cpu:
                for seen in self.threads.map(look, sequence.blocks(self.chosen.rows)):
                    self.watch.add(seen)
            else:
                _look_on_device(self.watch, self.layer, sequence, self.chosen.rows)
        return self.passes_on(call)


@dataclass(frozen=True)
class _TopKRule:
    """Shows the chosen rows, and attends to the k largest scores of every row."""

    layer: int
    chosen: ChosenRows
    watch: Watch
    threads: BlockThreads
    option: TopK

    def attend(self, call: AttentionCall) -> Tensor:
        sequence = SequenceRows(call, self.option.vmc)
        chosen, every_row = self.chosen.rows, torch.arange(call.query.shape[2], device="cpu")
        if not call.query.is_cpu:
            out = self._attend_on_device(sequence, sequence.blocks(every_row))
            with naming_layer(self.layer):
                _look_on_device(self.watch, self.layer, sequence, chosen)
            return out[None].to(call.query.dtype)
        is_chosen = torch.zeros(len(every_row), dtype=torch.bool, device="cpu")
        is_chosen[chosen] = True

        def attend(rows: Tensor) -> tuple[Tensor, Any]:
            scores = sequence.scores(rows)
            keep, ranked = keep_largest(scores, self.option.k)
            out = sequence.attend(rows, scores, keep, self.option.sdc)
            here = is_chosen[rows].nonzero().flatten()
            if len(here) == 0:
                return out, None
            ranked = None if ranked is None else take_rows(ranked, here)
            at_hand = ScoresAtHand(take_rows(scores, here), sequence.lengths(rows[here]), ranked)
            return out, self.watch.look(self.layer, at_hand, sequence.learnable_sink)

        with naming_layer(self.layer):
            found = self.threads.map(attend, sequence.blocks(every_row))
            for seen in (seen for _, seen in found if seen is not None):
                self.watch.add(seen)
        return torch.cat([out for out, _ in found], 1)[None].to(call.query.dtype)

    def _attend_on_device(self, sequence: SequenceRows, blocks: list[Tensor]) -> Tensor:
        parts = []
        with torch.autocast(sequence.query.device.type, enabled=False):
            for rows in blocks:
                here = torch.arange(int(rows[0]), int(rows[-1]) + 1, device=sequence.query.device)
                scores = sequence.scores(rows, here)
                keep, _ = keep_largest(scores, self.option.k)
                parts.append(sequence.attend(rows, scores, keep, self.option.sdc, here))
        return torch.cat(parts, 1)


def _look_on_device(watch: Watch, layer: int, sequence: SequenceRows, rows: Tensor) -> None:
    if len(rows):
        with torch.autocast(sequence.query.device.type, enabled=False):
            watch.add(watch.look(layer, RowsOnDevice(sequence, rows), sequence.learnable_sink))


@contextmanager
def naming_layer(layer: int) -> Iterator[None]:
    """Name the layer where scores are no numbers. The model has layers, and knows nothing of values and rows."""
    try:
        yield
    except TopThetaValueError as error:
        if error.argument not in ("values", "rows"):
            raise
        remedy = "look for NaN in its weights, or for an overflow: load it in bfloat16 or float32"
        raise TopThetaValueError(f"scores of layer {layer}", "finite elements or -inf", error.got, remedy) from error


def on_device_of(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Move ``tokens`` to where ``model`` takes them."""
    # accelerate leaves offloaded weights on the meta device, and itself moves what goes in
    return tokens if model.device.type == "meta" else tokens.to(model.device)
