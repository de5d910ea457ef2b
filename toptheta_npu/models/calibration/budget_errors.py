"""What the budgets of a table lose and read on texts that it has not seen: its promises, measured."""

from __future__ import annotations

import dataclasses

from transformers import PreTrainedModel

from ..._checks import check_int
from ...calibration.error_sums import ErrorSums
from ...thresholds import ThresholdTable
from ...thresholds.budget import aims_of, levels_along, needed_curves
from ...thresholds.curves import ErrorCurves
from ..fingerprint.model import check_table
from ..hook.attach import check_model
from ..hook.residual import residual_stream
from .error_job import ROW_FRACTION, error_settings
from .error_watch import ErrorWatch
from .job import Progress, check_options
from .observe import run_texts
from .texts import CalibrationTexts, Sequences
from .token_sequences import can_be_read_twice


def measure_budgets(
    model: PreTrainedModel,
    table: ThresholdTable,
    sequences: Sequences,
    *,
    row_fraction: float = ROW_FRACTION,
    seed: int = 0,
    longest: int | None = None,
    progress: Progress | None = None,
) -> ErrorCurves:
    """Measure the budgets of a table's error curves on other texts, to compare with what the table expects of them.

    The model runs once over the sequences, dense. All heads of a layer are looked at together, under the budgets whose
    prices are in the curves of ``table``, at the same row lengths and with the same compensations.

    Args:
        model, longest: as in `calibrate`.
        table: thresholds of this model, with error curves.
        sequences: texts that made neither.
        row_fraction, seed, progress: as in `calibrate_error_curves`.

    Returns:
        Curves whose ``path_error``, ``path_value_rows`` and ``counts`` are those of these texts; the rest is that of
        ``table``.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate_error_curves`; or the table
            has no error curves.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50,
        ...     initializer_range=0.5)).eval()
        >>> texts = torch.randint(50, (12, 40))
        >>> table = models.calibrate(model, texts[:4], k=[4, 8, 16], layer_k=[0, 0], top_k_at_calibration=False)
        >>> table = models.calibrate_error_curves(model, table, texts[4:8], row_fraction=1.0)
        >>> found = models.measure_budgets(model, table, texts[8:], row_fraction=1.0)
        >>> found.price.equal(table.curves.price), found.mean_error().shape == table.curves.mean_error().shape
        (True, True)
    """
    check_model(model)
    check_table(model, table)
    check_options(progress, None)
    check_int("seed", seed, None)
    curves = needed_curves(table, "table")
    texts = CalibrationTexts(model, sequences, longest, 0, int(table.k[0]))
    settings = error_settings(
        model, table, curves.lengths.tolist(), sdc=curves.sdc, vmc=curves.vmc, row_fraction=row_fraction, seed=seed
    )
    if can_be_read_twice(sequences):
        settings.check_rows(texts.rows())
    sums = ErrorSums(settings)
    sums.prices = curves.price.numpy()
    path = levels_along(curves.error[..., -1], aims_of(table), curves.price.tolist(), curves.vmc)
    with residual_stream(model) as stream:
        run_texts(model, texts, settings.rows, ErrorWatch(table, sums, stream, path).rule, progress)
    return dataclasses.replace(sums.curves(), error=curves.error)
