"""The rule of `sparsify`: decode steps, and prompts where asked for, by calibrated thresholds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from toptheta_npu.fallback.prefill import prefill_attention_with_stats
from toptheta_npu.models.attention import AttentionCall
from toptheta_npu.models.statistics import Recorder
from toptheta_npu.operator import incremental_attention, incremental_attention_with_stats
from toptheta_npu.prefill import prefill_attention
from toptheta_npu.thresholds import ThresholdsAtK

Sdc = Literal["none", "exact", "exp_threshold", "offline"]
PrefillMode = Literal["dense", "thresholded"]


@dataclass(frozen=True)
class ThresholdOptions:
    """The options of `sparsify` that a layer needs."""

    sdc: Sdc
    sdc_gamma: float
    vmc: bool
    prefill: PrefillMode


class DeviceThresholds:
    """The thresholds on every device that a layer runs on."""

    def __init__(self, at_k: ThresholdsAtK) -> None:
        self._copies = {torch.device("cpu"): at_k}
        self._original = at_k

    def on(self, device: torch.device) -> ThresholdsAtK:
        if device not in self._copies:
            mass = self._original.discarded_mass
            self._copies[device] = dataclasses.replace(
                self._original,
                theta=tuple(theta.to(device) for theta in self._original.theta),
                discarded_mass=None if mass is None else tuple(part.to(device) for part in mass),
            )
        return self._copies[device]


class ThresholdRule:
    """Keeps the elements above the calibrated threshold of each row."""

    def __init__(
        self, layer: int, thresholds: DeviceThresholds, options: ThresholdOptions, recorder: Recorder | None
    ) -> None:
        self._layer = layer
        self._thresholds = thresholds
        self._options = options
        self._recorder = recorder

    def attend(self, call: AttentionCall) -> Tensor:
        """[B, Hq, Q, D]: thresholded where the options say so, else dense."""
        if call.query.shape[2] == 1:
            return self._decode(call)
        return call.dense() if self._options.prefill == "dense" else self._prefill(call)

    def _decode(self, call: AttentionCall) -> Tensor:
        arguments = {
            "actual_seq_lengths": call.rows.lengths,
            "key_start": call.rows.starts,
            "scale_value": call.scaling,
            "value_mean": call.value_mean() if self._options.vmc else None,
            **self._judge(call, call.rows.counts[:, 0]),
        }
        theta = arguments.pop("threshold")
        if self._recorder is None:
            return incremental_attention(call.query, call.key, call.value, theta, **arguments)
        out, _, kept, value_rows = incremental_attention_with_stats(
            call.query, call.key, call.value, theta, **arguments
        )
        self._recorder.record(call, kept.unsqueeze(-1), value_rows.unsqueeze(-1))
        return out

    def _prefill(self, call: AttentionCall) -> Tensor:
        arguments = {**call.prompt, "vmc": self._options.vmc, **self._judge(call, call.rows.counts)}
        arguments["threshold_per_row"] = arguments.pop("threshold").transpose(1, 2)
        if self._options.sdc == "offline":
            arguments["discarded_mass"] = arguments["discarded_mass"].transpose(1, 2)
        if self._recorder is None:
            return prefill_attention(call.query, **arguments)
        out, stats = prefill_attention_with_stats(call.query, **arguments)
        self._recorder.record(call, stats.kept, stats.value_rows)
        return out

    def _judge(self, call: AttentionCall, counts: Tensor) -> dict[str, Any]:
        """Thresholds [..., Hq] for rows of ``counts`` [...] keys, and the options that go with them."""
        thresholds = self._thresholds.on(call.query.device)
        offline = self._options.sdc == "offline"
        call.forward.judged()
        return {
            "threshold": thresholds.rows(self._layer, counts),
            "discarded_mass": thresholds.discarded_mass_rows(self._layer, counts) if offline else None,
            "placement": thresholds.placement,
            "sdc": self._options.sdc,
            "sdc_gamma": self._options.sdc_gamma,
        }
