"""Sums over the rows of a sparse run, in constant memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..caches.visible_keys import Rows
from ..hook.attention import AttentionCall
from .histogram import Histogram


@dataclass(frozen=True, eq=False)
class LayerSummary:
    """Sums over the rows of one layer, padding left out. Adding two summaries gives the summary of all their rows.

    All tensors are int64 on the CPU.

    Attributes:
        rows: number of rows.
        keys: sum of their visible keys, each row's own key included.
        kept: [Hq], sum of the elements kept per query head.
        empty: [Hq], rows in which nothing passed and the largest element stands in; they count as 1 kept.
        value_rows: [Hkv], sum of the V rows needed per KV head, each the union over all its query heads.
        most_value_rows: [Hkv], the most V rows that a row needed.
        value_rows_histogram: histogram of the V rows, over rows and KV heads.
        sparse_rows: [Hq], rows with more keys than their target. 0 if the target is not known, or if a head keeps only
            the largest element of every row.
        sparse_aims: [Hq], sum of the elements that these rows aim at.
        sparse_kept: [Hq], sum of the elements that these rows kept.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
        >>> from toptheta_npu.models import sparsify
        >>> (model, _), table = load_tiny_llama(), load_tiny_llama_thresholds("post_softmax")
        >>> with sparsify(model, table, k=64, statistics="summary") as run:
        ...     _ = model.generate(torch.arange(600)[None], max_new_tokens=5, min_new_tokens=5, do_sample=False)
        >>> last = run.summaries()[-1]
        >>> last.rows, last.keys, last.value_rows.shape
        (4, 2410, torch.Size([2]))
        >>> bool(last.value_rows_histogram.percentile(0.95) <= last.most_value_rows.max())
        True
        >>> bool((last + last).kept_over_aim.equal(last.kept_over_aim))
        True
    """

    rows: int
    keys: int
    kept: Tensor
    empty: Tensor
    value_rows: Tensor
    most_value_rows: Tensor
    value_rows_histogram: Histogram
    sparse_rows: Tensor
    sparse_aims: Tensor
    sparse_kept: Tensor

    @property
    def kept_over_aim(self) -> Tensor:
        """k~/k of every query head over the rows with more keys than k, float64 [Hq]; NaN for a head without any."""
        return self.sparse_kept.double() / self.sparse_aims

    def __add__(self, other: LayerSummary) -> LayerSummary:
        sums = {
            each.name: getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
            if each.name != "most_value_rows"
        }
        return LayerSummary(most_value_rows=torch.maximum(self.most_value_rows, other.most_value_rows), **sums)


class SummaryRecorder:
    """Adds up the rows of one layer. The sums stay on their device until they are asked for.

    Args:
        num_heads, num_key_value_heads: number of query heads and KV heads of the layer.
        target: number of elements that its rows aim at, unless a call gives its own; None: not known.
    """

    def __init__(self, num_heads: int, num_key_value_heads: int, target: int | None = None) -> None:
        self._heads = (num_heads, num_key_value_heads)
        self._target = target
        self._adding = threading.Lock()
        self._sums: dict[torch.device, LayerSummary] = {}

    def record(
        self, call: AttentionCall, kept: Tensor, value_rows: Tensor, empty: Tensor, aims: Tensor | None = None,
        *, decode: bool,
    ) -> None:  # fmt: skip
        """Add the rows of a call: kept, empty and aims [B, Hq, Q], value_rows [B, Hkv, Q]."""
        if aims is None and self._target is not None:
            aims = torch.full_like(kept, self._target)
        with torch.no_grad():
            new = _sums(call.rows, kept, value_rows, empty, aims)
            with self._adding:
                before = self._sums.get(kept.device)
                self._sums[kept.device] = new if before is None else before + new

    def clear(self) -> None:
        """Forget all rows."""
        self._sums = {}

    def result(self) -> LayerSummary:
        """Compute the sums over all rows so far, on the CPU."""
        of_head, of_group = (torch.zeros(heads, dtype=torch.long, device="cpu") for heads in self._heads)
        nothing = LayerSummary(
            0, 0, of_head, of_head, of_group, of_group, Histogram.empty(), of_head, of_head, of_head
        )  # fmt: skip
        return sum((_on_cpu(sums) for sums in list(self._sums.values())), nothing)


def _sums(rows: Rows, kept: Tensor, value_rows: Tensor, empty: Tensor, aims: Tensor | None) -> LayerSummary:
    """Sum the rows of a call on its device. Nothing here reads a value, so no step waits for the device."""
    keys = rows.counts.flatten().long()
    real = (keys > 0).long()
    kept, value_rows, empty = (each.transpose(0, 1).flatten(1) * real for each in (kept, value_rows, empty))
    aims = keys.expand_as(kept) if aims is None else aims.transpose(0, 1).flatten(1).long()
    sparse = (keys > aims).long()
    bins = torch.zeros(rows.span + 1, dtype=torch.long, device=keys.device)
    return LayerSummary(
        rows=real.sum(),  # type: ignore[arg-type]
        keys=keys.sum(),  # type: ignore[arg-type]
        kept=kept.sum(1),
        empty=empty.sum(1),
        value_rows=value_rows.sum(1),
        most_value_rows=value_rows.amax(1),
        value_rows_histogram=Histogram(
            bins.scatter_add_(0, value_rows.flatten(), real.expand_as(value_rows).flatten())
        ),
        sparse_rows=sparse.sum(1),
        sparse_aims=(aims * sparse).sum(1),
        sparse_kept=(kept * sparse).sum(1),
    )


def _on_cpu(sums: LayerSummary) -> LayerSummary:
    found = {each.name: getattr(sums, each.name) for each in fields(sums)}
    tensors = {name: value.cpu() for name, value in found.items() if name != "value_rows_histogram"}
    return LayerSummary(**tensors | {
        "rows": int(sums.rows), "keys": int(sums.keys),
        "value_rows_histogram": Histogram(sums.value_rows_histogram.counts.cpu()),
    })  # fmt: skip
