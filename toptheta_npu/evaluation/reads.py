"""Holds what attention read: kept elements, V rows and K rows, over rows, heads and layers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Reads:
    """Hold what the rows read, per layer group: kept elements per query head, V rows per KV head.

    ``empty_share`` is the share of the pairs of row and query head in which nothing passed and the largest element
    stands in, ``key_rows_mean`` the K rows that were read to choose the V rows. ``kept_over_target`` is k~/k of the
    rows with more keys than their layer's k, None where no row has a k.
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
        """Tell how many times fewer V rows than dense attention are read."""
        return self.keys_mean / self.value_rows_mean if self.value_rows_mean else math.inf


@dataclass(frozen=True)
class LayerReads:
    """Hold what the rows of one layer read.

    Attributes:
        reads: over all its rows and heads; 0 in a layer that has none, such as one with a sliding window.
        kept_over_target: k~ over the layer's k per query head, of the rows with more keys than that; None where there
            were none.
    """

    reads: Reads
    kept_over_target: tuple[float | None, ...] = ()
