"""Counts the reads of a method, from the summaries of each sample's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from ..models.sparse.histogram import Histogram
from ..models.sparse.summaries import LayerSummary
from .methods.method import DENSER_LAYERS, EVERY_KEY, KeyReads, Method
from .reads import LayerReads, Reads


class SamplesRead(NamedTuple):
    """The reads of all samples, with the field names of `Measurement`."""

    reads: Reads
    reads_all: Reads
    layers: tuple[LayerReads, ...]


class ReadCounter:
    """Adds up the reads of a method, sample by sample, in constant memory.

    Args:
        method: the method that runs.

    Example:
        >>> import torch
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> from toptheta_npu.evaluation.methods.kinds import make_method
        >>> model, method = load_tiny_llama()[0], make_method("dense")
        >>> counter = ReadCounter(method)
        >>> with torch.no_grad(), method.enter(model) as recording:
        ...     for length in (10, 20):
        ...         _ = model(torch.arange(length)[None])
        ...         counter.add(recording.summaries())
        ...         recording.clear()
        >>> counter.result().reads.value_rows_max
        20.0
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._layers: list[LayerSummary] = []

    def add(self, summaries: Sequence[LayerSummary]) -> None:
        """Add a sample: the summaries of its rows, one per layer."""
        self._layers = list(map(add, self._layers, summaries)) if self._layers else list(summaries)

    def result(self) -> SamplesRead:
        """Return the reads of the samples so far."""
        # the first layers score every key under every method
        key_reads = [EVERY_KEY] * DENSER_LAYERS + [self._method.key_reads] * len(self._layers)
        layers = tuple(map(_layer_reads, self._layers, key_reads))
        judged = summarise(self._layers[DENSER_LAYERS:], self._method.key_reads)
        return SamplesRead(judged, replace(summarise(self._layers), key_rows_mean=self._key_rows(layers)), layers)

    def _key_rows(self, layers: Sequence[LayerReads]) -> float:
        """Average the K rows per row and KV head, over all layers."""
        rows = [layer.rows for layer in self._layers]
        read = sum(count * (layer.reads.key_rows_mean or 0.0) for count, layer in zip(rows, layers, strict=True))
        return read / sum(rows) if any(rows) else 0.0


def _layer_reads(layer: LayerSummary, key_reads: KeyReads) -> LayerReads:
    ratios = tuple(None if math.isnan(ratio) else ratio for ratio in layer.kept_over_aim.tolist())
    return LayerReads(summarise([layer], key_reads), ratios)


def summarise(layers: Sequence[LayerSummary], key_reads: KeyReads = EVERY_KEY) -> Reads:
    """Average the kept elements, and the V rows over rows, heads and layers with their distribution; 0 without rows."""
    pairs, groups = (sum(layer.rows * len(getattr(layer, each)) for layer in layers) for each in ("kept", "value_rows"))
    rows, keys = (sum(getattr(layer, name) for layer in layers) for name in ("rows", "keys"))
    value_rows = reduce(add, (layer.value_rows_histogram for layer in layers), Histogram.empty())
    value_rows_mean = _mean(sum(int(layer.value_rows.sum()) for layer in layers), groups)
    keys_mean = _mean(keys, rows)
    return Reads(
        kept_mean=_mean(sum(int(layer.kept.sum()) for layer in layers), pairs),
        value_rows_mean=value_rows_mean,
        value_rows_p95=float(value_rows.percentile(0.95)),
        value_rows_max=float(max((int(layer.most_value_rows.max()) for layer in layers), default=0)),
        keys_mean=keys_mean,
        empty_share=_mean(sum(int(layer.empty.sum()) for layer in layers), pairs),
        key_rows_mean=key_reads.rows(keys_mean, value_rows_mean),
        kept_over_target=_kept_over_target(layers),
    )


def _kept_over_target(layers: Sequence[LayerSummary]) -> float | None:
    aims = sum(int(layer.sparse_aims.sum()) for layer in layers)
    return _mean(sum(int(layer.sparse_kept.sum()) for layer in layers), aims) if aims else None


def _mean(total: int, count: int) -> float:
    """Divide, and round to single precision, which the files of results have."""
    return float(np.float32(total / count)) if count else 0.0
