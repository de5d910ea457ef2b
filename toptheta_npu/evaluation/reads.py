"""What attention read: kept elements, V rows and K rows, over rows, heads and layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.statistics import LayerStatistics


@dataclass(frozen=True)
class Reads:
    """What the rows read, per layer group: kept elements per query head, V rows per KV head.

    ``empty_share`` is the share of the pairs of row and query head in which nothing passed and the largest element
    stands in, ``key_rows_mean`` the K rows that were read to choose the V rows. What is None was not counted when the
    results were written.
    """

    kept_mean: float
    value_rows_mean: float
    value_rows_p95: float
    value_rows_max: float
    keys_mean: float
    empty_share: float | None = None
    value_rows_p50: float | None = None
    key_rows_mean: float | None = None

    @property
    def value_row_saving(self) -> float:
        """How many times fewer V rows than dense attention reads."""
        return self.keys_mean / self.value_rows_mean if self.value_rows_mean else math.inf

    @property
    def element_saving(self) -> float:
        """How many times fewer attention elements than dense attention uses."""
        return self.keys_mean / self.kept_mean if self.kept_mean else math.inf


@dataclass(frozen=True)
class LayerReads:
    """What the rows of one layer read.

    Attributes:
        reads: over all its rows and heads.
        kept_over_target: k~ over the layer's k per query head, of the rows with more keys than that; None where there
            were none.
        kept_histogram: numbers of kept elements, ascending, and how many pairs of row and head kept so many;
            large numbers share a bin, named by its least.
        wanted_by: V rows of each KV head that exactly 1, 2, ... query heads of its group wanted, one list per KV head.
    """

    reads: Reads
    kept_over_target: tuple[float | None, ...] = ()
    kept_histogram: tuple[tuple[int, int], ...] = ()
    wanted_by: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class KeptSpread:
    """How k~/k spreads: over rows and query heads, between the means of heads and those of windows."""

    std: float
    p95: float
    least_head: float
    most_head: float
    least_window: float
    most_window: float


def summarise(layers: Sequence[LayerStatistics]) -> Reads:
    """Mean kept elements and the distribution of V rows over rows, heads and layers."""
    rows = torch.cat([layer.value_rows.flatten() for layer in layers]).float()
    return Reads(
        torch.cat([layer.kept.flatten() for layer in layers]).float().mean().item(),
        rows.mean().item(),
        _p95(rows),
        rows.max().item(),
        torch.cat([layer.keys for layer in layers]).float().mean().item(),
        torch.cat([layer.empty.flatten() for layer in layers]).float().mean().item(),
    )


def kept_spread(layers: Sequence[LayerStatistics], k: int, windows: int) -> KeptSpread:
    """The spread of k~/k; every layer has the rows of one of ``windows`` windows after the other, as many each."""
    ratios = torch.stack([layer.kept.float() / k for layer in layers])  # [L, rows, Hq]
    heads = ratios.mean(1)
    means = ratios.unflatten(1, (windows, -1)).mean((0, 2, 3))
    ends = [end.item() for means in (heads, means) for end in (means.min(), means.max())]
    return KeptSpread(ratios.std(correction=0).item(), _p95(ratios.flatten()), *ends)


def _p95(values: Tensor) -> float:
    return values.kthvalue(max(1, round(0.95 * values.numel()))).values.item()
