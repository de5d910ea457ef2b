"""The rule of `sparsify`: decode steps, and prompts where asked for, by calibrated thresholds."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._checks import PrefillMode, Sdc
from .._value_checks import are_seen
from ..context_parallel import context_parallel_attention
from ..errors import TopThetaNotImplementedError
from ..fallback.baselines import above_threshold
from ..fallback.compensation import score_threshold
from ..fallback.layout import count_group_rows, count_wanted_by, head_block
from ..fallback.prefill import RowChunk, Selector, prefill_attention_with_stats
from ..fallback.reference import attention_scores, log_sum_exp, select, valid_keys
from ..operator import (
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
    prefill_attention,
)
from ..thresholds import ThresholdsAtK
from .attention import AttentionCall
from .drift import LayerDrift
from .sharded_cache import ShardedLayer
from .statistics import Recorder
from .value_mean import CachedLayer


@dataclass(frozen=True)
class ThresholdOptions:
    """The options of `sparsify` that a layer needs."""

    sdc: Sdc
    sdc_gamma: float
    vmc: bool
    prefill: PrefillMode


class DeviceThresholds:
    """The thresholds on every device that a layer runs on, in tensors that stay the same when their values change.

    Args:
        at_k: thresholds on the CPU, whose tensors are taken over.
        devices: where a copy is wanted from the start; others follow when a layer asks for them.
    """

    def __init__(self, at_k: ThresholdsAtK, devices: Iterable[torch.device] = ()) -> None:
        self._copies = {torch.device("cpu"): at_k}
        self._writing = threading.Lock()
        for device in devices:
            self.on(device)

    @property
    def current(self) -> ThresholdsAtK:
        """The thresholds on the CPU."""
        return self._copies[torch.device("cpu")]

    def on(self, device: torch.device) -> ThresholdsAtK:
        """The thresholds on ``device``."""
        if device not in self._copies:
            if torch.compiler.is_compiling():  # a lock cannot be traced
                self._copy_to(device)
            else:
                # so that the copy can be written to outside of an inference mode that holds now
                with self._writing, torch.inference_mode(False):
                    self._copy_to(device)
        return self._copies[device]

    def _copy_to(self, device: torch.device) -> None:
        if device in self._copies:
            return
        parts: dict[str, Any] = {
            name: tuple(part.to(device) for part in kept) for name, kept in _tensors(self.current).items()
        }
        self._copies[device] = dataclasses.replace(self.current, **parts)

    def replace(self, at_k: ThresholdsAtK) -> None:
        """Copies the values of ``at_k``, of the same table and lengths on the CPU, into the tensors of every device."""
        with self._writing, torch.no_grad():
            for device, copy in list(self._copies.items()):
                kept = _tensors(copy)
                for name, values in _tensors(at_k).items():
                    for tensor, value in zip(kept[name], values, strict=True):
                        tensor.copy_(value)
                self._copies[device] = dataclasses.replace(at_k, **kept)


def _tensors(at_k: ThresholdsAtK) -> dict[str, Any]:
    """The fields of tensors, one per layer each."""
    parts = {"theta": at_k.theta, "discarded_mass": at_k.discarded_mass, "aims": at_k.aims}
    return {name: part for name, part in parts.items() if part is not None}


class ThresholdRule:
    """Keeps the elements above the calibrated threshold of each row."""

    def __init__(
        self,
        layer: int,
        thresholds: DeviceThresholds,
        options: ThresholdOptions,
        recorder: Recorder | None,
        drift: LayerDrift | None = None,
    ) -> None:
        self._layer = layer
        self._thresholds = thresholds
        self._options = options
        self._recorder = recorder
        self._drift = drift

    def attend(self, call: AttentionCall) -> Tensor:
        """[B, Hq, Q, D]: thresholded where the options say so, else dense."""
        if call.query.shape[2] == 1:
            return self._decode(call)
        if self._drift is not None:
            self._drift.carry(call)
        return call.dense() if self._options.prefill == "dense" else self._prefill(call)

    def _decode(self, call: AttentionCall) -> Tensor:
        if call.cached is not None and isinstance(call.cached.layer, ShardedLayer):
            return self._decode_sharded(call, call.cached, call.cached.layer)
        arguments = {
            "actual_seq_lengths": call.rows.lengths,
            "key_start": call.rows.starts,
            "scale_value": call.scaling,
            "value_mean": call.value_mean() if self._options.vmc else None,
            **self._thresholds_and_options(call, call.rows.counts[:, 0]),
        }
        theta, placement = arguments.pop("threshold"), arguments["placement"]
        if self._recorder is None and self._drift is None:
            return incremental_attention(call.query, call.key, call.value, theta, **arguments)
        step = None
        if self._drift is not None:
            step = self._drift.step(call, self._thresholds.on(call.query.device), theta)
            theta = step.threshold(placement)
        out, lse, kept, value_rows = incremental_attention_with_stats(
            call.query, call.key, call.value, theta, **arguments
        )
        if step is not None:
            step.learn(kept, placement)
        if self._recorder is not None:
            rows, wanted_by = group_rows(call, theta, value_rows, placement, self._recorder.popularity)
            empty = empty_rows(call, theta, lse, kept, placement)
            self._recorder.record(
                call, kept.unsqueeze(-1), rows.unsqueeze(-1), empty.unsqueeze(-1),
                None if wanted_by is None else wanted_by.unsqueeze(2), self._aims(call),
            )  # fmt: skip
        return out

    def _decode_sharded(self, call: AttentionCall, cached: CachedLayer, layer: ShardedLayer) -> Tensor:
        for name, unsupported in (("statistics", self._recorder), ("drift_control", self._drift)):
            if unsupported is not None:
                raise TopThetaNotImplementedError(
                    name, "none with a ShardedCache", "some", "leave it out, or pass DynamicCache()"
                )
        rows, (key, value) = layer.local_rows(call.rows), layer.share
        arguments = self._thresholds_and_options(call, call.rows.counts[:, 0])
        return context_parallel_attention(
            call.query, key, value, arguments.pop("threshold"), actual_seq_lengths=rows.lengths,
            key_start=rows.starts, scale_value=call.scaling, interleave=layer.sharding.interleave, group=layer.group,
            value_sum=cached.value_sum(value, rows) if self._options.vmc else None, **arguments,
        )  # fmt: skip

    def _prefill(self, call: AttentionCall) -> Tensor:
        arguments = {**call.prompt, "vmc": self._options.vmc, **self._thresholds_and_options(call, call.rows.counts)}
        arguments["threshold_per_row"] = arguments.pop("threshold").transpose(1, 2)
        if self._options.sdc == "offline":
            arguments["discarded_mass"] = arguments["discarded_mass"].transpose(1, 2)
        if self._recorder is None:
            return prefill_attention(call.query, **arguments)
        out, stats = prefill_attention_with_stats(call.query, **arguments, popularity=self._recorder.popularity)
        self._recorder.record(call, stats.kept, stats.group_rows, stats.empty, stats.wanted_by, self._aims(call))
        return out

    def selector(self) -> Selector:
        """The same rule for chunks of rows, without the drift of a sequence."""

        def select(chunk: RowChunk) -> Tensor:
            thresholds = self._thresholds.on(chunk.scores.device)
            of_rows = partial(thresholds.rows, self._layer)
            return above_threshold(of_rows, thresholds.placement)(chunk)

        return select

    def _aims(self, call: AttentionCall) -> Tensor:
        """The elements that each row aims at, int64 [B, Q]: all its keys where it is dense."""
        thresholds, counts = self._thresholds.on(call.query.device), call.rows.counts
        sparse = counts > thresholds.dense_up_to[self._layer]
        return torch.where(sparse, thresholds.aim_rows(self._layer, counts).long(), counts)

    def _thresholds_and_options(self, call: AttentionCall, counts: Tensor) -> dict[str, Any]:
        """Thresholds [..., Hq] for rows of ``counts`` [...] keys, and the options that go with them."""
        thresholds = self._thresholds.on(call.query.device)
        offline = self._options.sdc == "offline"
        call.forward.note_longest()
        return {
            "threshold": thresholds.rows(self._layer, counts),
            "discarded_mass": thresholds.discarded_mass_rows(self._layer, counts) if offline else None,
            "placement": thresholds.placement,
            "sdc": self._options.sdc,
            "sdc_gamma": self._options.sdc_gamma,
        }


def empty_rows(call: AttentionCall, threshold: Tensor, lse: Tensor, kept: Tensor, placement: str) -> Tensor:
    """The rows of a decode step in which nothing passed, bool [B, Hq]: there ``kept`` counts the stand-in alone.

    The operator for a part of a row has no stand-in, and the whole row is a part.
    """
    if are_seen(kept) and not (kept == 1).any():
        return torch.zeros_like(kept, dtype=torch.bool)
    passed = incremental_attention_partial(
        call.query, call.key, call.value, threshold,
        actual_seq_lengths=call.rows.lengths, key_start=call.rows.starts, scale_value=call.scaling,
        placement=placement, lse=lse if placement == "post_softmax" else None,
    ).kept  # fmt: skip
    return (kept == 1) & (passed == 0)


def group_rows(
    call: AttentionCall, threshold: Tensor, value_rows: Tensor, placement: str, popularity: bool
) -> tuple[Tensor, Tensor | None]:
    """V rows that a decode step needs per KV head, [B, Hkv], and how many heads want how many of them.

    The first are the union over all heads of a group. The operator's own ``value_rows`` [B, Hkv] are that, unless a
    group is larger than its head block. The second, [B, Hkv, Hq / Hkv], are counted only for ``popularity``.
    """
    heads, kv_heads, head_dim = call.query.shape[1], call.key.shape[1], call.query.shape[3]
    counted = heads // kv_heads <= head_block(head_dim)
    if counted and not popularity:
        return value_rows, None
    keep = _kept_elements(call, threshold, placement)
    rows = value_rows if counted else count_group_rows(keep, kv_heads)
    return rows, count_wanted_by(keep, kv_heads) if popularity else None


def _kept_elements(call: AttentionCall, threshold: Tensor, placement: str) -> Tensor:
    """What a decode step keeps, bool [B, Hq, S], which the operator does not tell."""
    counts = call.rows.counts[:, 0]
    starts = torch.zeros_like(counts) if call.rows.starts is None else call.rows.starts
    visible = valid_keys(call.key.shape[2], counts, starts)
    scale = call.query.shape[3] ** -0.5 if call.scaling is None else call.scaling
    scores = attention_scores(call.query[:, :, 0].float(), call.key.float(), scale).masked_fill(~visible, -torch.inf)
    return select(scores, score_threshold(threshold, log_sum_exp(scores), placement))
