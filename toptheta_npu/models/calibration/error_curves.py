"""The passes of a calibration that measure what its thresholds lose: every head alone, then budgets of all heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_choice, check_int
from ...calibration.error_sums import ErrorSums, HeadErrors, PathErrors
from ...calibration.row_statistics import rows_of_sequence
from ...errors import TopThetaTypeError, TopThetaValueError
from ...thresholds import ThresholdTable
from ...thresholds.curves import ErrorCurves
from ...thresholds.lookup import Lookup
from ..fingerprint.model import check_table
from ..hook.architecture import num_key_value_heads, sliding_layers
from ..hook.attach import check_model
from ..hook.attention import AttentionCall
from ..hook.residual import ResidualNorms, output_projection, residual_norms
from .error_rows import Compensated, ErrorRows
from .job import Progress, check_options
from .observe import ChosenRows, naming_layer, run_texts
from .rows import BlockThreads, SequenceRows
from .texts import CalibrationTexts, Sequences

#: Share of the rows that are looked at by default: each is worked out for every k.
ROW_FRACTION = 1 / 32


def calibrate_error_curves(
    model: PreTrainedModel, table: ThresholdTable, sequences: Sequences, **options: Any
) -> ThresholdTable:
    """Extend a copy of ``table`` by what its thresholds lose, so that `sparsify` can choose k for every head.

    Args:
        model, table, sequences, options: as in `measure_error_curves`.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `measure_error_curves`.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50,
        ...     initializer_range=0.5)).eval()
        >>> texts = torch.randint(50, (8, 40))
        >>> table = models.calibrate(model, texts[:4], k=[4, 8, 16], layer_k=[0, 0], top_k_at_calibration=False)
        >>> table = models.calibrate_error_curves(model, table, texts[4:], row_fraction=1.0)
        >>> table.budget(target_value_rows=8).head_k.shape
        torch.Size([2, 2])
    """
    return dataclasses.replace(table, curves=measure_error_curves(model, table, sequences, **options))


def measure_error_curves(
    model: PreTrainedModel,
    table: ThresholdTable,
    sequences: Sequences,
    *,
    lengths: Sequence[int] | None = None,
    sdc: Literal["exact", "none"] = "exact",
    vmc: bool = True,
    row_fraction: float = ROW_FRACTION,
    seed: int = 0,
    longest: int | None = None,
    budgets_of: ErrorCurves | None = None,
    progress: Progress | None = None,
) -> ErrorCurves:
    """Measure what the thresholds of ``table`` lose, on texts that did not make them.

    The model runs twice over sequences that made no thresholds, dense. The first time every head is looked at alone,
    at every k of the table. The second time a dozen budgets, chosen by that, are looked at with all heads of a layer
    together: errors of several heads add up, and V rows that several heads of a group want are read once.

    Args:
        model, longest, progress: as in `calibrate`; ``progress`` counts the sequences of both passes.
        table: final thresholds of this model.
        sequences: texts that made no thresholds. They must be readable twice.
        lengths: ascending row lengths to measure at; None: a quarter and half of the longest row, and the longest.
        sdc, vmc: the compensations, as they will be at inference.
        row_fraction: share of the rows to look at.
        seed: of their choice.
        budgets_of: the second pass looks at the budgets of these curves, of the same table, to compare what they
            predict with what other texts show; None: it chooses budgets by the first pass.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate`; or the table belongs to
            another model, or ``budgets_of`` to another table.
    """
    check_model(model)
    check_table(model, table)
    check_choice("sdc", sdc, ("exact", "none"))
    check_options(progress, None, vmc=vmc)
    if not 0.0 < row_fraction <= 1.0:
        raise TopThetaValueError("row_fraction", "above 0 and at most 1", str(row_fraction))
    texts = CalibrationTexts(model, sequences, longest, 0, int(table.k[0]))
    measured = _checked_lengths(lengths, texts.longest_row)
    sums = ErrorSums(table, measured, sliding_layers(model), num_key_value_heads(model))
    _check_budgets_of(budgets_of, table)
    compensated, count = Compensated(sdc, vmc), 0

    def done(_: int) -> None:
        nonlocal count
        count += 1
        if progress is not None:
            progress(count)

    def rows_of(rows: int, index: int) -> Tensor:
        chosen = rows_of_sequence(rows, row_fraction, seed, index)
        return chosen[2 * (chosen + 1) ** 2 >= measured[0] ** 2]

    with residual_norms(model) as norms:
        for path in (False, True):
            watch = _Watch(table, sums, compensated, norms, sums.path(vmc, budgets_of) if path else None)
            run_texts(model, texts, rows_of, watch.rule, done)
    return sums.curves(sdc, vmc)


def _check_budgets_of(curves: ErrorCurves | None, table: ThresholdTable) -> None:
    if curves is None:
        return
    if not isinstance(curves, ErrorCurves):
        raise TopThetaTypeError("budgets_of", "the curves of a table", type(curves).__name__)
    want, got = (1 + len(table.k), table.num_layers, table.num_heads), tuple(curves.error.shape[:3])
    if got != want:
        raise TopThetaValueError("budgets_of", f"curves with errors of {want}: levels of k, layers, heads", str(got))


def _checked_lengths(lengths: Sequence[int] | None, longest: int) -> list[int]:
    if lengths is None:
        return sorted({max(1, longest // 4), max(1, longest // 2), longest})
    for length in lengths:
        check_int("lengths", length, 1, longest)
    if list(lengths) != sorted(set(lengths)) or not lengths:
        raise TopThetaValueError("lengths", "one or more ascending row lengths", str(list(lengths)))
    return list(lengths)


class _Watch:
    """One of the two passes: of single heads, or of budgets where ``path`` [P, L, Hq] holds their levels."""

    def __init__(
        self, table: ThresholdTable, sums: ErrorSums, compensated: Compensated, norms: ResidualNorms,
        path: Tensor | None,
    ) -> None:  # fmt: skip
        self.sums, self.compensated, self.norms, self.path = sums, compensated, norms, path
        self.placement: str = table.placement
        self._lookup, self._knots = Lookup(table), len(table.k)

    def rule(self, layer: int, chosen: ChosenRows, threads: BlockThreads) -> _ErrorRule:
        return _ErrorRule(layer, chosen, threads, self)

    def thresholds(self, layer: int, lengths: Tensor) -> Tensor:
        """Look up the thresholds of all levels: float32 [1 + K, Hq, R]; +inf for the largest element only."""
        found = [self._lookup.calibrated_rows(knot, layer, lengths.cpu().numpy()) for knot in range(self._knots)]
        return torch.from_numpy(np.stack([np.full_like(found[0], np.inf), *found])).to(lengths.device)


@dataclass(frozen=True)
class _ErrorRule:
    """Shows what the chosen rows lose, and attends densely."""

    layer: int
    chosen: ChosenRows
    threads: BlockThreads
    watch: _Watch

    def attend(self, call: AttentionCall) -> Tensor:
        sequence = SequenceRows(call, self.watch.compensated.vmc)
        norms = self.watch.norms.of(self.layer)[0]
        projection = output_projection(call.module)
        look = self._heads(projection) if self.watch.path is None else self._budgets(projection)

        def work(rows: Tensor) -> HeadErrors | PathErrors:
            errors = ErrorRows(sequence, rows, self.watch.compensated, self.watch.placement)
            theta = self.watch.thresholds(self.layer, errors.lengths)
            return look(errors, theta, norms[rows])

        with naming_layer(self.layer):
            for seen in self.threads.map(work, sequence.blocks(self.chosen.within(sequence)), call.query.device):
                self.watch.sums.add(seen)
        return call.dense()

    def _heads(self, projection: Tensor) -> Callable[[ErrorRows, Tensor, Tensor], HeadErrors]:
        heads = projection.unflatten(1, (self.watch.sums.num_heads, -1))
        gram = torch.einsum("ehd,ehc->hdc", heads, heads)

        def look(rows: ErrorRows, theta: Tensor, norms: Tensor) -> HeadErrors:
            found = []
            for threshold in theta:
                off = rows.error(rows.keep(threshold), threshold)
                found.append((off @ gram).mul_(off).sum(-1).clamp_min_(0.0) / norms)
            return HeadErrors(self.layer, torch.stack(found).cpu(), rows.lengths.cpu())

        return look

    def _budgets(self, projection: Tensor) -> Callable[[ErrorRows, Tensor, Tensor], PathErrors]:
        path = self.watch.path
        assert path is not None

        def look(rows: ErrorRows, theta: Tensor, norms: Tensor) -> PathErrors:
            errors, value_rows = [], []
            for levels in path[:, self.layer].to(theta.device):
                threshold = theta.gather(0, levels[None, :, None].expand(1, -1, theta.shape[2]))[0]
                keep = rows.keep(threshold)
                off = rows.error(keep, threshold).transpose(0, 1).flatten(1)
                errors.append((off @ projection.T).square().sum(-1) / norms)
                value_rows.append(rows.value_rows(keep))
            return PathErrors(self.layer, torch.stack(errors).cpu(), torch.stack(value_rows).cpu(), rows.lengths.cpu())

        return look
