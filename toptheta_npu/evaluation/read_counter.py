"""Counts what a method read, from the summaries of the rows of each sample."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from ..models.sparse.histogram import Histogram
from ..models.sparse.summaries import LayerSummary
from .methods.method import DENSER_LAYERS, EVERY_KEY, KeyReads, Method
from .reads import KeptSpread, LayerReads, Reads

#: From this number of kept elements on, a histogram has 32 bins per octave.
_EXACT_BELOW = 64


class SamplesRead(NamedTuple):
    """Hold what all samples read, by the names that `Measurement` has for it."""

    reads: Reads
    reads_all: Reads
    layers: tuple[LayerReads, ...]
    spread: KeptSpread | None


class ReadCounter:
    """Add up what a method read, one sample after the other, in memory that does not grow with them.

    Args:
        method: the method that runs.

    Example:
        >>> import torch
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> from toptheta_npu.evaluation.methods import kinds
        >>> model, method = load_tiny_llama()[0], kinds.dense()
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
        self._layers: list[_Layer] = []
        self._sample_means: list[float] = []

    def add(self, summaries: Sequence[LayerSummary]) -> None:
        """Add a sample: the summaries of its rows, one per layer."""
        new = [_Layer.of_sample(summary) for summary in summaries]
        self._layers = [old + each for old, each in zip(self._layers, new, strict=True)] if self._layers else new
        judged = summaries[DENSER_LAYERS:]
        if pairs := _pairs(judged):
            mean = _kept(judged) / pairs
            self._sample_means = [min([*self._sample_means, mean]), max([*self._sample_means, mean])]

    def result(self) -> SamplesRead:
        """Give what the samples so far read."""
        # the first layers score every key, whatever the method does in the others
        key_reads = [EVERY_KEY] * DENSER_LAYERS + [self._method.key_reads] * len(self._layers)
        layers = tuple(map(_layer_reads, self._layers, key_reads))
        spread = None
        if self._method.k and self._sample_means:
            judged = [layer.summary for layer in self._layers[DENSER_LAYERS:]]
            spread = kept_spread(judged, self._method.k, self._sample_means)
        judged_reads = _reads(self._layers[DENSER_LAYERS:], self._method.key_reads)
        all_reads = replace(_reads(self._layers, EVERY_KEY), key_rows_mean=self._key_rows(layers))
        return SamplesRead(judged_reads, all_reads, layers, spread)

    def _key_rows(self, layers: Sequence[LayerReads]) -> float:
        """Average the K rows per row and KV head, over all layers."""
        rows = [layer.summary.rows for layer in self._layers]
        read = sum(count * (layer.reads.key_rows_mean or 0.0) for count, layer in zip(rows, layers, strict=True))
        return read / sum(rows) if any(rows) else 0.0


def summarise(layers: Sequence[LayerSummary], key_reads: KeyReads = EVERY_KEY) -> Reads:
    """Average the kept elements, and the V rows over rows, heads and layers with their distribution; 0 without rows."""
    pairs, groups = _pairs(layers), sum(layer.rows * len(layer.value_rows) for layer in layers)
    rows, keys = (sum(getattr(layer, name) for layer in layers) for name in ("rows", "keys"))
    value_rows = reduce(add, (layer.value_rows_histogram for layer in layers), Histogram.empty())
    value_rows_mean = _mean(sum(int(layer.value_rows.sum()) for layer in layers), groups)
    keys_mean = _mean(keys, rows)
    return Reads(
        kept_mean=_mean(_kept(layers), pairs),
        value_rows_mean=value_rows_mean,
        value_rows_p95=float(value_rows.percentile(0.95)),
        value_rows_max=float(max((int(layer.most_value_rows.max()) for layer in layers), default=0)),
        keys_mean=keys_mean,
        empty_share=_mean(sum(int(layer.empty.sum()) for layer in layers), pairs),
        value_rows_p50=float(value_rows.percentile(0.5)),
        key_rows_mean=key_reads.rows(keys_mean, value_rows_mean),
        kept_over_target=_kept_over_target(layers),
    )


def _kept_over_target(layers: Sequence[LayerSummary]) -> float | None:
    aims = sum(int(layer.sparse_aims.sum()) for layer in layers)
    return _mean(sum(int(layer.sparse_kept.sum()) for layer in layers), aims) if aims else None


def kept_spread(layers: Sequence[LayerSummary], k: int, sample_means: Sequence[float]) -> KeptSpread:
    """Give the spread of k~/k; ``sample_means`` are the mean kept elements per row and head of each sample."""
    pairs, kept = _pairs(layers), _kept(layers)
    squares = sum(int(layer.kept_squares.sum()) for layer in layers)
    std = math.sqrt(pairs * squares - kept**2) / pairs
    p95 = reduce(add, (layer.kept_histogram for layer in layers)).percentile(0.95)
    heads = [int(head) / layer.rows for layer in layers if layer.rows for head in layer.kept]
    figures = (std, p95, min(heads), max(heads), min(sample_means), max(sample_means))
    return KeptSpread(*(_single(figure / k) for figure in figures))


@dataclass(frozen=True)
class _Layer:
    """Sum the rows of a layer over several samples, and the squares of each sample's and head's kept elements."""

    summary: LayerSummary
    samples: int
    squares: int

    @classmethod
    def of_sample(cls, summary: LayerSummary) -> _Layer:
        return cls(summary, int(summary.rows > 0), sum(kept**2 for kept in summary.kept.tolist()))

    def __add__(self, other: _Layer) -> _Layer:
        return _Layer(self.summary + other.summary, self.samples + other.samples, self.squares + other.squares)


def _reads(layers: Sequence[_Layer], key_reads: KeyReads) -> Reads:
    summaries = [layer.summary for layer in layers]
    entries = sum(layer.samples * len(layer.summary.kept) for layer in layers)
    kept, elements = _kept(summaries), sum(summary.keys * len(summary.kept) for summary in summaries)
    if not elements:
        return summarise(summaries, key_reads)
    std = math.sqrt(entries * sum(layer.squares for layer in layers) - kept**2) / elements
    return replace(summarise(summaries, key_reads), kept_share=kept / elements, kept_share_std=std)


def _layer_reads(layer: _Layer, key_reads: KeyReads) -> LayerReads:
    summary = layer.summary
    return LayerReads(
        _reads([layer], key_reads),
        tuple(None if math.isnan(ratio) else ratio for ratio in summary.kept_over_aim.tolist()),
        _coarse(summary.kept_histogram),
        tuple(tuple(heads) for heads in summary.wanted_by.tolist()),
    )


def _coarse(histogram: Histogram) -> tuple[tuple[int, int], ...]:
    bins: Counter[int] = Counter()
    for number, count in histogram.items():
        shift = max(0, (number // _EXACT_BELOW).bit_length())
        bins[number >> shift << shift] += count
    return tuple(sorted(bins.items()))


def _pairs(layers: Sequence[LayerSummary]) -> int:
    """Count the pairs of row and query head."""
    return sum(layer.rows * len(layer.kept) for layer in layers)


def _kept(layers: Sequence[LayerSummary]) -> int:
    return sum(int(layer.kept.sum()) for layer in layers)


def _mean(total: int, count: int) -> float:
    return _single(total / count) if count else 0.0


def _single(figure: float) -> float:
    """Round to single precision, which the files of results have."""
    return float(np.float32(figure))
