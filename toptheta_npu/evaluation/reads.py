"""The reads of attention: kept elements, V rows and K rows, over rows, heads and layers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Reads:
    """The reads of rows, per layer group: kept elements per query head, V rows per KV head.

    ``empty_share`` is the fraction of (row, query head) pairs in which nothing passed and the largest element stands
    in. ``key_rows_mean`` is the mean number of K rows read to choose the V rows. ``kept_over_target`` is k~/k of the
    rows with more keys than their layer's k; None if no row has a k.
    """

    kept_mean: float
    value_rows_mean: float
    value_rows_p95: float
    value_rows_max: float
    keys_mean: float
    empty_share: float = 0.0
    key_rows_mean: float | None = None
    kept_over_target: float | None = None

    @property
    def value_row_saving(self) -> float:
        """Divide the V rows that dense attention reads by the V rows read here."""
        return self.keys_mean / self.value_rows_mean if self.value_rows_mean else math.inf


@dataclass(frozen=True)
class LayerReads:
    """The reads of one layer.

    Attributes:
        reads: reads over all its rows and heads; 0 in a layer without rows, such as one with a sliding window.
        kept_over_target: k~/k per query head, over the rows with more keys than the layer's k; None without such rows.
    """

    reads: Reads
    kept_over_target: tuple[float | None, ...] = ()
