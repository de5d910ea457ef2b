"""One part of a measurement of error curves: checked, resumed where it had stopped, and run in two passes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_choice, check_int
from ...calibration.error_state import ErrorState, checksum_of
from ...calibration.error_sums import ErrorSettings, ErrorSums
from ...calibration.part import Part
from ...errors import TopThetaTypeError
from ...thresholds import ThresholdTable
from ..fingerprint.model import check_table
from ..hook.architecture import num_key_value_heads, sliding_layers
from ..hook.attach import check_model
from ..hook.residual import residual_stream
from .error_watch import ErrorWatch
from .job import Meanwhile, PartJob, PartOfTexts, Progress, RowsOf, check_options, dtype_of
from .observe import run_texts
from .texts import Sequences
from .token_sequences import can_be_read_twice

#: Share of the rows that are looked at by default: each is worked out for every k.
ROW_FRACTION = 1 / 32


@dataclass(frozen=True, kw_only=True)
class ErrorOptions:
    """What `calibrate_error_curves` can be told. Its docstring says what each means."""

    lengths: Sequence[int] | None = None
    sdc: Literal["exact", "none"] = "exact"
    vmc: bool = True
    row_fraction: float = ROW_FRACTION
    seed: int = 0
    longest: int | None = None
    progress: Progress | None = None
    provenance: Mapping[str, str] | None = None


class ErrorJob(PartJob[ErrorState]):
    """One part of a measurement of error curves, ready to run.

    Args:
        model, table, sequences, options: as in `calibrate_error_curves`.
        part: which sequences to run.
        checkpoint, every: as in `PartJob`.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate_error_curves`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        table: ThresholdTable,
        sequences: Sequences,
        options: ErrorOptions,
        *,
        part: Part,
        checkpoint: str | os.PathLike[str] | None,
        every: int,
    ) -> None:
        check_model(model)
        check_table(model, table)
        check_choice("sdc", options.sdc, ("exact", "none"))
        check_options(options.progress, options.provenance, vmc=options.vmc)
        check_int("checkpoint_every", every, 1)
        if not can_be_read_twice(sequences):
            got = type(sequences).__name__
            raise TopThetaTypeError("sequences", "texts that can be read twice", got, "pass a list of them")
        self._model, self._options, self._table = model, options, table
        texts = PartOfTexts(model, sequences, options.longest, 0, int(table.k[0]))
        settings = error_settings(
            model, table, _lengths(options.lengths, texts.longest_row), sdc=options.sdc, vmc=options.vmc,
            row_fraction=options.row_fraction, seed=options.seed,
        )  # fmt: skip
        settings.check_rows(texts.rows())
        fresh = ErrorState(
            sums=ErrorSums(settings), fingerprint=table.fingerprint, dtype=dtype_of(model), run={},
            provenance=dict(options.provenance or {}), part=part,
        )  # fmt: skip
        super().__init__(texts, fresh, checkpoint, every)

    def run_first(self, meanwhile: Meanwhile | None = None) -> ErrorState:
        """Run what is left of the first pass, if anything is.

        Raises:
            TopThetaValueError: as `PartJob.run_rest`.
        """
        if self.state.first is None:
            self._run(None, 0, meanwhile)
        return self.state

    def run_second(self, whole: ErrorState, meanwhile: Meanwhile | None = None) -> ErrorState:
        """Run what is left of the second pass.

        Args:
            whole: what the first pass has found in all parts.
            meanwhile: as in `PartJob.run_rest`.

        Raises:
            TopThetaValueError: as `PartJob.run_rest`; or the sequences are not those of the first pass.
        """
        if self.state.first is None:
            self.state = self.state.second(self._table, whole)
            self.keep()
        assert self.state.first is not None
        before = len(range(self.state.part.index, self.state.first.total, self.state.part.count))
        self._run(self.state.sums.path(self._table), before, meanwhile)
        self.state.check_same_sequences()
        return self.state

    def _run(self, path: Tensor | None, before: int, meanwhile: Meanwhile | None) -> None:
        settings, progress = self.state.sums.settings, self._options.progress

        def observe(rows_of: RowsOf, done: Progress) -> None:
            with residual_stream(self._model) as stream:
                watch = ErrorWatch(self._table, self.state.sums, stream, path)
                run_texts(self._model, self._texts, rows_of, watch.rule, done)

        self.run_rest(
            observe, settings.rows, None if progress is None else lambda done: progress(before + done), meanwhile
        )


def error_settings(
    model: PreTrainedModel, table: ThresholdTable, lengths: Sequence[int], *, sdc: str, vmc: bool, row_fraction: float,
    seed: int,
) -> ErrorSettings:  # fmt: skip
    """Describe a measurement of the errors of ``model`` under the thresholds of ``table``."""
    return ErrorSettings(
        thresholds=checksum_of(table), levels=1 + len(table.k), num_layers=table.num_layers, num_heads=table.num_heads,
        num_kv_heads=num_key_value_heads(model), lengths=lengths, dense_layers=sliding_layers(model), sdc=sdc, vmc=vmc,
        row_fraction=row_fraction, seed=seed,
    )  # fmt: skip


def _lengths(lengths: Sequence[int] | None, longest: int) -> list[int]:
    if lengths is None:
        return sorted({max(1, longest // 4), max(1, longest // 2), longest})
    for length in lengths:
        check_int("lengths", length, 1, longest)
    return list(lengths)
