"""The rule of `sparsify`: thresholds for decode steps, and for prompts on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._checks import PrefillMode, Sdc
from ...fallback.prefill import prefill_attention_with_stats
from ...ops import (
    incremental_attention,
    incremental_attention_with_stats,
)
from ...ops.prefill import prefill_attention
from ..hook.attention import AttentionCall
from .decode_counts import decode_counts
from .device_thresholds import DeviceThresholds
from .statistics import Recorder


@dataclass(frozen=True)
class ThresholdOptions:
    """The options of `sparsify` that a layer needs."""

    sdc: Sdc
    sdc_gamma: float
    vmc: bool
    prefill: PrefillMode
    verify_tokens: int = 1


class ThresholdRule:
    """Keeps the elements above the calibrated threshold of each row."""

    def __init__(
        self,
        layer: int,
        thresholds: DeviceThresholds,
        options: ThresholdOptions,
        recorder: Recorder | None,
    ) -> None:
        self._layer = layer
        self._thresholds = thresholds
        self._options = options
        self._recorder = recorder

    def attend(self, call: AttentionCall) -> Tensor:
        """Compute the output [B, Hq, Q, D]: thresholded where the options say so, else dense."""
        is_decode = call.query.shape[2] == 1 or self._is_verified(call)
        if is_decode:
            return self._decode(call)
        return call.dense() if self._options.prefill == "dense" else self._prefill(call)

    def _is_verified(self, call: AttentionCall) -> bool:
        """Tell whether a call on a filled cache has so few new tokens that each counts as a decode step."""
        few = call.query.shape[2] <= self._options.verify_tokens
        return few and call.cached is not None and call.rows.continue_sequences

    def _decode(self, call: AttentionCall) -> Tensor:
        if self._is_quicker_dense(call):
            call.forward.note_longest()
            return call.dense()
        arguments = {
            "actual_seq_lengths": call.rows.lengths,
            "actual_query_lengths": call.rows.query_lengths,
            "key_start": call.rows.starts,
            "scale_value": call.scaling,
            "value_mean": call.value_mean() if self._options.vmc else None,
            "learnable_sink": call.learnable_sink,
            **call.antiquant,
            **self._decode_thresholds(call),
        }
        theta, placement = arguments.pop("threshold"), arguments["placement"]
        if self._recorder is None:
            return incremental_attention(call.query, call.key, call.value, theta, **arguments)
        out, _, kept, value_rows = incremental_attention_with_stats(
            call.query, call.key, call.value, theta, **arguments
        )
        counts = decode_counts(call, theta, kept, value_rows, placement)
        self._record(self._recorder, call, *counts, decode=True)
        return out

    def _decode_thresholds(self, call: AttentionCall) -> dict[str, Any]:
        """Look up the thresholds [..., Hq] of a step, [B, Hq, Q] of several tokens, and the options."""
        if call.query.shape[2] == 1:
            found = self._thresholds_and_options(call, self._decode_counts(call))
        else:
            found = self._thresholds_and_options(call, call.rows.counts)
            for name in ("threshold", "discarded_mass"):
                if found[name] is not None:
                    found[name] = found[name].transpose(1, 2).contiguous()
        return found

    def _is_quicker_dense(self, call: AttentionCall) -> bool:
        """Tell whether all rows of a step have fewer than ``dense_below`` keys, and no statistics are collected."""
        limit, lengths = self._thresholds.current.dense_below, call.rows.host_lengths
        if not limit or lengths is None or self._recorder is not None or torch.compiler.is_compiling():
            return False
        return int(lengths.max()) < limit

    def _decode_counts(self, call: AttentionCall) -> Tensor | int:
        """Return the number of keys of each row of a step, [B], or one number if the host knows that all are equal."""
        alike = call.rows.lengths is None and not torch.compiler.is_compiling()
        plain = self._recorder is None and self._options.sdc != "offline"
        return call.rows.span if alike and plain else call.rows.counts[:, 0]

    def _prefill(self, call: AttentionCall) -> Tensor:
        arguments = {**call.prompt, "vmc": self._options.vmc, **self._thresholds_and_options(call, call.rows.counts)}
        arguments["threshold_per_row"] = arguments.pop("threshold").transpose(1, 2)
        if self._options.sdc == "offline":
            arguments["discarded_mass"] = arguments["discarded_mass"].transpose(1, 2)
        if self._recorder is None:
            return prefill_attention(call.query, **arguments)
        out, stats = prefill_attention_with_stats(call.query, **arguments)
        self._record(self._recorder, call, stats.kept, stats.group_rows, stats.empty, decode=False)
        return out

    def _record(
        self, recorder: Recorder, call: AttentionCall, kept: Tensor, value_rows: Tensor, empty: Tensor, *, decode: bool
    ) -> None:
        """Record rows with their targets; a dense row aims at all its keys."""
        thresholds, keys = self._thresholds.on(call.query.device), call.rows.counts[:, None]
        aims = thresholds.aim_rows(self._layer, call.rows.counts).long()[:, None]
        sparse = keys > thresholds.dense_up_to[self._layer]
        aims = torch.where(sparse, torch.minimum(aims, keys), keys).expand(kept.shape)
        recorder.record(call, kept, value_rows, empty, aims, decode=decode)

    def _thresholds_and_options(self, call: AttentionCall, counts: Tensor | int) -> dict[str, Any]:
        """Look up thresholds [..., Hq] for rows of ``counts`` [...] keys, and the options that go with them."""
        thresholds = self._thresholds.on(call.query.device)
        offline = self._options.sdc == "offline"
        call.forward.note_longest()
        if isinstance(counts, int):
            theta, mass = thresholds.row(self._layer, counts), None
        else:
            theta = thresholds.rows(self._layer, counts)
            mass = thresholds.discarded_mass_rows(self._layer, counts) if offline else None
        return {
            "threshold": theta,
            "discarded_mass": mass,
            "placement": thresholds.placement,
            "sdc": self._options.sdc,
            "sdc_gamma": self._options.sdc_gamma,
        }
