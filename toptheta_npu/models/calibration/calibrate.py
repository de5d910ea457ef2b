"""Calibrates a transformers model: computes thresholds from its attention scores over sample texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from transformers import PreTrainedModel

from ..._checks import check_choice, check_int, check_modes
from ..._warnings import warn_of_sdc_without_vmc
from ...calibration import Calibrator
from ...calibration.discarded import DiscardedMass
from ...calibration.settings import CalibrationSettings, default_layer_k
from ...calibration.state import CalibrationState
from ...errors import Setting, TopThetaCombinationError, TopThetaTypeError, TopThetaValueError, shown
from ...thresholds import DiscardedStatistic, Estimator, Placement, ThresholdTable
from ...thresholds.kinds import DISCARDED_STATISTICS, MAX_LENGTH
from ...thresholds.summary import told_dense
from ..fingerprint.digests import model_digests
from ..fingerprint.model import check_table, model_fingerprint
from ..hook.architecture import num_heads, num_layers, sliding_layers, window_in_words
from ..hook.attach import check_model
from ..hook.attention import AttentionCall
from ..sparse.device_thresholds import DeviceThresholds
from ..sparse.threshold_rule import ThresholdOptions, ThresholdRule
from .observe import Attend, Progress, check_options, observe_model
from .sequence_rows import TopK
from .state_file import StateFile
from .texts import Sequences, checked_texts


def calibrate(
    model: PreTrainedModel,
    sequences: Sequences,
    *,
    k: int | Sequence[int] = 128,
    placement: Placement = "post_softmax",
    estimator: Estimator = "algorithm1",
    alpha: float = 0.1,
    layer_k: int | Sequence[int] | None = None,
    row_fraction: float = 1.0,
    top_k_at_calibration: bool = True,
    sdc: Literal["none", "exact"] = "exact",
    vmc: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    provenance: Mapping[str, str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 16,
) -> ThresholdTable:
    """Compute thresholds that keep about ``k`` elements per attention row of ``model`` (paper, Algorithm 1).

    Every sequence runs through the model once. Scores are used layer by layer and then dropped, so of each sequence
    only the tokens stay in memory. Layers with a sliding window are dense, here and in `sparsify`. They get no
    thresholds.

    Args:
        model: a decoder-only model in evaluation mode.
        sequences: token ids: a tensor [B, n] int64; a list of ids, lists of ids or tensors [n] or [B, n]; the output of
            a tokenizer, whose attention mask marks the padding; or an iterable of these, such as a DataLoader.
        k: elements to keep per row; several values need ``top_k_at_calibration=False``.
        placement: whether thresholds are probabilities ("post_softmax") or scaled scores ("pre_softmax").
            Probabilities carry over better from row to row. Scores can be compared in a single pass over K.
        estimator: "algorithm1" averages the rows' own thresholds, "pooled" keeps k on average.
        alpha: standard deviations added to the average (algorithm1 only).
        layer_k: least k of each layer, 0 for none. An int applies to all layers. None means 512 in the first two
            layers, as in the paper.
        row_fraction: fraction of the rows to sample.
        top_k_at_calibration: whether a layer passes on the attention over its k largest scores. Later layers are then
            calibrated on inputs like those at inference. Otherwise it passes on its dense output.
        sdc, vmc: compensations in that output; use the same as at inference. The other estimates of `sparsify`
            approximate sdc="exact": calibrate with "exact" for them.
        seed: seed of the row sample.
        progress: called after each sequence with the number of sequences done, including those of a resumed state.
        provenance: description of the sequences, stored in the table.
        checkpoint: file for the state of the work, written atomically after every ``checkpoint_every`` sequences and at
            the end. If the file exists, the work resumes after its last sequence. The table is then identical, byte for
            byte, to that of an uninterrupted run. A file of a model with other weights or adapters is refused. This
            check reads all weights once, at about 1 GB a second per thread. Delete the file once the table is saved.
        checkpoint_every: number of sequences between two checkpoints.

    Returns:
        A table for `sparsify`, with the model's fingerprint.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: the model is not supported or an
            option unusable, or a sequence is not tokens or has no row longer than the smallest k; or ``checkpoint``
            cannot be read or written, or is of another model, other options or other sequences.

    Warns:
        SdcWithoutVmcWarning: layers pass on outputs computed with ``sdc="exact"`` and ``vmc=False``.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)).eval()
        >>> models.calibrate(model, torch.randint(50, (4, 40)), k=8, layer_k=[0, 16])
        ThresholdTable(post_softmax, algorithm1, k=[8], 2 layers x 2 heads, lengths 9 to 40 (32 stored))
    """
    check_model(model)
    targets = _checked_k(k, top_k_at_calibration)
    check_choice("sdc", sdc, ("none", "exact"))
    check_options(progress, provenance, top_k_at_calibration=top_k_at_calibration, vmc=vmc)
    check_modes(placement, sdc, 0.0, None, "vmc" if vmc else None)
    if top_k_at_calibration:
        warn_of_sdc_without_vmc(sdc, vmc, stacklevel=2)
    texts = checked_texts(model, sequences, min(targets))
    settings = CalibrationSettings(
        num_layers=num_layers(model), num_heads=num_heads(model), k=targets, longest=max(map(len, texts)),
        layer_k=_layer_k_of(layer_k, num_layers(model)), placement=placement,
        estimator=estimator, alpha=alpha, row_fraction=row_fraction, seed=seed, dense_layers=sliding_layers(model),
    )  # fmt: skip
    settings.check_rows(map(len, texts))
    run = {"top_k_at_calibration": str(top_k_at_calibration), "sdc": sdc, "vmc": str(vmc)}
    dtype = str(model.dtype).removeprefix("torch.")
    digests = {} if checkpoint is None else model_digests(model)
    state = CalibrationState(Calibrator(settings), model_fingerprint(model), dtype, run, digests)
    file = StateFile(state, checkpoint, checkpoint_every)
    file.resume(texts)
    start = state.seen.sequences

    def attend_of(layer: int) -> Attend | TopK:
        return TopK(settings.targets(layer)[0], sdc, vmc) if top_k_at_calibration else AttentionCall.dense

    def done(count: int) -> None:
        file.add(texts[start + count - 1])
        if progress is not None:
            progress(start + count)

    observe_model(
        model, texts[start:], lambda rows, index: settings.rows(rows, start + index), state.calibrator, attend_of, done
    )
    file.keep()
    return state.table({**told_dense(sliding_layers(model), window_in_words(model)), **(provenance or {})})


def _layer_k_of(layer_k: int | Sequence[int] | None, layers: int) -> Sequence[int]:
    if layer_k is None:
        return default_layer_k(layers)
    return [layer_k] * layers if isinstance(layer_k, int) else layer_k


def _checked_k(k: int | Sequence[int], top_k_at_calibration: bool) -> list[int]:
    if type(k) is not int and not isinstance(k, (list, tuple)):
        raise TopThetaTypeError("k", "an int, or a list or tuple of them", shown(k))
    targets = [k] if isinstance(k, int) else list(k)
    for each in targets:
        check_int("k", each, 1, MAX_LENGTH)
    if not targets:
        raise TopThetaValueError("k", "one or more ints", "none")
    if top_k_at_calibration and len(targets) > 1:
        raise TopThetaCombinationError(
            "top_k_at_calibration", "needs", "one k, which decides what later layers see",
            ("calibrate each k by itself, or pass ", Setting("top_k_at_calibration", False)),
        )  # fmt: skip
    return targets


def calibrate_discarded_mass(
    model: PreTrainedModel,
    table: ThresholdTable,
    sequences: Sequences,
    *,
    statistic: DiscardedStatistic = "geometric_mean",
    row_fraction: float = 1.0,
    vmc: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> ThresholdTable:
    """Copy ``table`` and add the exponential mass that its thresholds typically discard, for ``sdc="offline"``.

    This runs the calibration sequences a second time. With a single k, layers pass on the thresholded output.
    With several, they pass on the dense output.

    Args:
        model, sequences, row_fraction, vmc, seed, progress: as in `calibrate`.
        table: pre-softmax thresholds of this model.
        statistic: "geometric_mean" of the rows' masses, or their "mean" as in the paper. A few rows with a large
            mass pull the mean far above the others, so `sparsify` warns when it is used.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate`; or the table
            belongs to another model or is post-softmax, where no estimate is needed.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)).eval()
        >>> texts = torch.randint(50, (4, 40))
        >>> table = models.calibrate(model, texts, k=8, layer_k=[0, 0], placement="pre_softmax")
        >>> models.calibrate_discarded_mass(model, table, texts).discarded_mass.shape == table.theta.shape
        True
    """
    check_model(model)
    check_table(model, table)
    check_choice("statistic", statistic, DISCARDED_STATISTICS)
    check_options(progress, vmc=vmc)
    ks: list[int] = table.k.tolist()
    second_pass, texts = DiscardedMass(table), checked_texts(model, sequences, min(ks))
    settings = CalibrationSettings(
        num_layers=table.num_layers, num_heads=table.num_heads, k=ks, longest=max(map(len, texts)),
        placement=table.placement, estimator=table.estimator, alpha=table.alpha, layer_k=table.layer_k,
        row_fraction=row_fraction, seed=seed, dense_layers=sliding_layers(model),
    )  # fmt: skip
    settings.check_rows(map(len, texts))
    thresholds = DeviceThresholds(table.at(ks[0]))
    options = ThresholdOptions("exact", 0.0, vmc, "thresholded")

    def attend_of(layer: int) -> Attend:
        return ThresholdRule(layer, thresholds, options, None).attend if len(ks) == 1 else AttentionCall.dense

    observe_model(model, texts, settings.rows, second_pass, attend_of, progress)
    return second_pass.extended(statistic)
