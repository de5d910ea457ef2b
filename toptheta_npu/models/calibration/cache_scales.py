"""Calibrates the scales of an int8 cache: the largest magnitude of each K and V channel over sample texts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaNotImplementedError, TopThetaValueError
from ...thresholds import ThresholdTable
from ..fingerprint.model import check_table
from ..hook.architecture import num_layers, sliding_layers
from ..hook.attach import check_model
from ..hook.attention import AttentionCall
from .observe import Progress, check_options, run_texts
from .texts import Sequences, checked_texts

_LARGEST = 127


def calibrate_cache_scales(
    model: PreTrainedModel,
    table: ThresholdTable,
    sequences: Sequences,
    *,
    progress: Progress | None = None,
) -> ThresholdTable:
    """Copy ``table`` and add scales per channel for an `Int8Cache`: the largest magnitudes divided by 127.

    The model runs once over the sequences, dense. The thresholds do not change: 16-bit thresholds also suit int8.

    Args:
        model, sequences, progress: as in `calibrate`.
        table: thresholds of this model.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate`; the table belongs to another
            model; or layers have sliding windows or keys and values of different sizes, which `Int8Cache` cannot hold.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)).eval()
        >>> texts = torch.randint(50, (4, 40))
        >>> table = models.calibrate(model, texts, k=8, layer_k=[0, 0])
        >>> models.calibrate_cache_scales(model, table, texts).key_cache_scale.shape  # layers, KV heads, head_dim
        torch.Size([2, 2, 16])
    """
    check_model(model)
    check_table(model, table)
    check_options(progress)
    if sliding := sliding_layers(model):
        raise TopThetaNotImplementedError(
            "model", "layers that attend to all tokens, for an int8 cache", f"a sliding window in layer {sliding[0]}",
            "leave the scales out",
        )  # fmt: skip
    texts = checked_texts(model, sequences, 0)
    peaks = [_Peaks() for _ in range(num_layers(model))]
    run_texts(model, texts, _no_rows, lambda layer, *_: _PeakRule(peaks[layer]), progress)
    keys, values = (torch.stack([getattr(peak, name) for peak in peaks]) for name in ("key", "value"))
    return with_scales(table, keys / _LARGEST, values / _LARGEST)


def with_scales(table: ThresholdTable, keys: Tensor, values: Tensor) -> ThresholdTable:
    """Copy ``table`` with these scales [L, Hkv, D]; a channel that was always 0 gets 1, which changes nothing."""
    if keys.shape != values.shape:
        raise TopThetaNotImplementedError(
            "model", "keys and values of one size, for an int8 cache", f"{keys.shape[-1]} and {values.shape[-1]}"
        )
    for name, scale in (("keys", keys), ("values", values)):
        if not scale.isfinite().all():
            layer = int(scale.isfinite().flatten(1).all(1).logical_not().nonzero()[0])
            raise TopThetaValueError("model", f"finite {name}", f"others in layer {layer}", "check the model's weights")
    keys, values = (scale.where(scale > 0, 1.0) for scale in (keys, values))
    return dataclasses.replace(table, key_cache_scale=keys, value_cache_scale=values)


class _Peaks:
    """The largest magnitudes so far in one layer, float32 [Hkv, D]."""

    key = value = torch.zeros((), dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class _PeakRule:
    """Notes the largest magnitudes, and attends densely."""

    peaks: _Peaks

    def attend(self, call: AttentionCall) -> Tensor:
        for name, rows in (("key", call.prompt["key"]), ("value", call.prompt["value"])):
            largest = rows.abs().amax((0, 2)).float().cpu()
            setattr(self.peaks, name, torch.maximum(getattr(self.peaks, name), largest))
        return call.dense()


def _no_rows(count: int, index: int) -> Tensor:
    """Choose no rows, since no scores are needed."""
    return torch.zeros(0, dtype=torch.int64, device="cpu")
