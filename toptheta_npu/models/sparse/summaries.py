"""What a sparse run kept, added up: of any number of rows in the same memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .histogram import Histogram
from .recorded_rows import RecordedRows, RowsOfCalls


@dataclass(frozen=True, eq=False)
class LayerSummary:
    """Sums over the rows of one layer, padding left out. Two of them add up to that of all their rows.

    All tensors are int64 on the CPU.

    Attributes:
        rows: how many rows.
        keys: sum of their visible keys, the row's own included.
        kept: [Hq], sum of the elements kept per query head.
        empty: [Hq], rows in which nothing passed and the largest element stands in; they count as 1 kept.
        value_rows: [Hkv], sum of the V rows needed per KV head, each the union over all its query heads.
        most_value_rows: [Hkv], the most V rows that a row needed.
        value_rows_histogram: of the V rows, over rows and KV heads.
        sparse_rows: [Hq], rows with more keys than they aim at; 0 where nothing says what they aim at, and where a head
            keeps the largest element of every row alone.
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
        """k~/k of every query head over the rows with more keys than k, float64 [Hq]; NaN where there were none."""
        return self.sparse_kept.double() / self.sparse_aims

    def __add__(self, other: LayerSummary) -> LayerSummary:
        sums = {
            each.name: getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
            if each.name != "most_value_rows"
        }
        return LayerSummary(most_value_rows=torch.maximum(self.most_value_rows, other.most_value_rows), **sums)


class SummaryRecorder(RowsOfCalls):
    """Adds up the rows of one layer. The sums stay on the device, one set per thread, until they are asked for.

    Args:
        num_heads, num_key_value_heads: of the layer.
        target: how many elements its rows aim at, unless a call says so itself; None: not known.
    """

    def __init__(self, num_heads: int, num_key_value_heads: int, target: int | None = None) -> None:
        self._heads = (num_heads, num_key_value_heads)
        self._target = target
        self._sums: dict[tuple[int, torch.device], _Sums] = {}

    def _add(self, rows: RecordedRows) -> None:
        place = (threading.get_ident(), rows.kept.device)
        sums = self._sums.get(place)
        if sums is None:
            # normal tensors, which can be written to in any mode
            with torch.inference_mode(False):
                sums = self._sums.setdefault(place, _Sums(*self._heads, rows.kept.device))
        with sums.adding, torch.no_grad():
            sums.add(rows._replace(aims=self._aims(rows)))

    def clear(self) -> None:
        """Forget all rows."""
        self._sums = {}

    def result(self) -> LayerSummary:
        """Compute the sums over all rows so far, on the CPU."""
        total = _Sums(*self._heads, torch.device("cpu")).result()
        for sums in list(self._sums.values()):
            with sums.adding:
                total += sums.result()
        return total

    def _aims(self, rows: RecordedRows) -> Tensor | None:
        if rows.aims is not None or self._target is None:
            return rows.aims
        return torch.full_like(rows.counts, self._target)[:, None].expand(-1, self._heads[0], -1)


class _Sums:
    """The sums of one thread on one device. Nothing here looks at a value, so that no step waits for the device."""

    def __init__(self, num_heads: int, num_key_value_heads: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)

        self.adding = threading.Lock()
        self._rows, self._keys = zeros(), zeros()
        self._kept, self._empty = (zeros(num_heads) for _ in range(2))
        self._sparse_rows, self._sparse_aims, self._sparse_kept = (zeros(num_heads) for _ in range(3))
        self._value_rows, self._most_value_rows = (zeros(num_key_value_heads) for _ in range(2))
        self._value_row_bins = zeros(0)

    def add(self, rows: RecordedRows) -> None:
        """Add the rows of a call."""
        keys = rows.counts.flatten().long()
        real = (keys > 0).long()
        kept, value_rows, empty = (
            each.transpose(0, 1).flatten(1) * real for each in (rows.kept, rows.value_rows, rows.empty)
        )
        self._rows += real.sum()
        self._keys += keys.sum()
        self._kept += kept.sum(1)
        self._empty += empty.sum(1)
        self._value_rows += value_rows.sum(1)
        torch.maximum(self._most_value_rows, value_rows.amax(1), out=self._most_value_rows)
        self._value_row_bins = _counted(self._value_row_bins, value_rows, real, rows.span)
        if rows.aims is not None:
            self._add_sparse(keys, kept, rows.aims.transpose(0, 1).flatten(1).long())

    def _add_sparse(self, keys: Tensor, kept: Tensor, aims: Tensor) -> None:
        sparse = (keys > aims).long()
        self._sparse_rows += sparse.sum(1)
        self._sparse_aims += (aims * sparse).sum(1)
        self._sparse_kept += (kept * sparse).sum(1)

    def result(self) -> LayerSummary:
        """Copy the sums so far to the CPU."""
        return LayerSummary(
            rows=int(self._rows),
            keys=int(self._keys),
            kept=_on_cpu(self._kept),
            empty=_on_cpu(self._empty),
            value_rows=_on_cpu(self._value_rows),
            most_value_rows=_on_cpu(self._most_value_rows),
            value_rows_histogram=Histogram(_on_cpu(self._value_row_bins)),
            sparse_rows=_on_cpu(self._sparse_rows),
            sparse_aims=_on_cpu(self._sparse_aims),
            sparse_kept=_on_cpu(self._sparse_kept),
        )


def _counted(bins: Tensor, numbers: Tensor, real: Tensor, span: int) -> Tensor:
    """Add the real ones among ``numbers`` [heads, rows] of at most ``span`` to ``bins``."""
    missing = span + 1 - len(bins)
    if missing > 0:
        with torch.inference_mode(False):
            bins = torch.cat([bins, bins.new_zeros(missing)])
    return bins.scatter_add_(0, numbers.flatten(), real.expand_as(numbers).flatten())


def _on_cpu(sums: Tensor) -> Tensor:
    """Copy ``sums`` to the CPU, even where they are there already."""
    return sums.to("cpu", copy=True)
