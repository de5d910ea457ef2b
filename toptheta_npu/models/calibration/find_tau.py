"""Finds the tau that reads a wanted number of V rows, from one pass over texts."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_int, check_number
from ...errors import TopThetaTypeError, TopThetaValueError
from ...fallback.prefill import Prompt, row_chunks
from ...fallback.reference import log_sum_exp
from ..hook.architecture import sliding_layers
from ..hook.attach import attached, check_model
from ..hook.attention import AttentionCall
from .observe import naming_layer, on_device_of
from .texts import Sequences, checked_texts

#: Number of bins for each halving of a probability, down to 2 to the power of minus `_HALVINGS`.
_PER_HALVING, _HALVINGS = 16, 40


def find_tau(
    model: PreTrainedModel,
    sequences: Sequences,
    *,
    value_rows: float,
    last_rows: int = 128,
) -> float:
    """Find the tau for `sparsify` at which a decode step reads ``value_rows`` V rows on average.

    Every sequence runs through the model once. Each of its last rows counts as a decode step: a V row is read if any
    query head of its KV head gives it a probability above tau. The mean is over rows, KV heads and layers. Layers with
    a sliding window stay dense and do not count.

    Args:
        model: a decoder-only model in evaluation mode.
        sequences: token ids, as in `calibrate`. Use sequences as long as in your application.
        value_rows: V rows that a step should read per KV head; at least 1 and below the number of keys.
        last_rows: number of rows to sample at the end of each sequence.

    Returns:
        tau, accurate to about 1 %.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: the model is not supported, a sequence is
            not tokens, a layer's scores are not numbers, or no tau reads that many V rows.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)).eval()
        >>> tau = models.find_tau(model, torch.randint(50, (4, 40)), value_rows=20, last_rows=1)
        >>> 1 / 50 < tau < 1 / 30  # this model's attention is nearly uniform
        True
    """
    check_number("value_rows", value_rows, minimum=1)
    check_int("last_rows", last_rows, 1)
    check_model(model)
    seen: dict[int, PeakCounts] = {}
    texts = checked_texts(model, sequences, 1)

    def rule_of(layer: int) -> PeakCounts:
        return seen.setdefault(layer, PeakCounts(last_rows))

    with attached(model, rule_of), torch.no_grad():
        for tokens in texts:
            model(on_device_of(model, tokens)[None], use_cache=False)
    counts = [_checked(layer, each.counts.cpu()) for layer, each in seen.items() if each.counts is not None]
    rows = sum(each.rows for each in seen.values())
    if not rows:
        raise TopThetaTypeError(
            "model", "one with a layer that attends to all keys", f"sliding windows in {sliding_layers(model)}"
        )
    return _tau_of(torch.stack(counts).sum(0) / rows, value_rows)


def _checked(layer: int, counts: Tensor) -> Tensor:
    """Return the counts of a layer, float64, without the last, which counts NaN; raise if that is not 0."""
    with naming_layer(layer):
        if counts[-1]:
            raise TopThetaValueError("rows", "finite elements or -inf", "NaN or +inf")
    return counts[:-1].double()


class PeakCounts:
    """Counts, over the last rows of prompts, keys by the largest probability that a query head of a KV head gives them.

    Attributes:
        counts: int64 [bins + 1], on the device of the layer; the last counts NaN. None before the first prompt.
        rows: number of rows counted, over all KV heads.
    """

    def __init__(self, last_rows: int) -> None:
        self._last_rows = last_rows
        self.counts: Tensor | None = None
        self.rows = 0

    def attend(self, call: AttentionCall) -> Tensor:
        """Count the keys, and compute the dense output [B, Hq, Q, D]."""
        query, prompt = call.query, call.prompt
        kv_heads, tokens = prompt["key"].shape[1], query.shape[2]
        wanted = torch.arange(max(0, tokens - self._last_rows), tokens, device="cpu")
        if self.counts is None:
            self.counts = torch.zeros(_PER_HALVING * _HALVINGS + 1, dtype=torch.int64, device=query.device)
        for chunk in row_chunks(Prompt(query, **prompt), wanted):
            shares = chunk.scores - log_sum_exp(chunk.scores, chunk.learnable_sink).unsqueeze(-1)
            peaks = shares.unflatten(1, (kv_heads, -1)).amax(2).expand(-1, -1, -1, chunk.scores.shape[-1])
            visible = chunk.visible.expand_as(peaks)
            bins = (peaks * (-_PER_HALVING / math.log(2))).clamp(0, len(self.counts) - 2)
            bins = bins.masked_fill(peaks.isnan(), len(self.counts) - 1).long()
            self.counts.scatter_add_(0, bins.flatten(), visible.flatten().long())
        self.rows += query.shape[0] * kv_heads * len(wanted)
        return call.dense()


def _tau_of(keys: Tensor, value_rows: float) -> float:
    """Find where the mean keys of a row add up to ``value_rows``; float64 by bins, from the largest probability on."""
    reached = keys.cumsum(0)
    if not value_rows < reached[-1]:
        raise TopThetaValueError(
            "value_rows", f"fewer than the {reached[-1]:g} keys that a row has on average", f"{value_rows:g}",
            "or give longer sequences; tau=0 reads all of them",
        )  # fmt: skip
    bin_of = int(torch.searchsorted(reached, torch.tensor(value_rows, dtype=torch.float64, device="cpu")))
    before = float(reached[bin_of - 1]) if bin_of else 0.0
    place = bin_of + (value_rows - before) / float(keys[bin_of])
    return float(2.0 ** (-place / _PER_HALVING))
