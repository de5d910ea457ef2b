"""Holds what attention read: kept elements, V rows and K rows, over rows, heads and layers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Reads:
    """Hold what the rows read, per layer group: kept elements per query head, V rows per KV head.

    ``empty_share`` is the share of the pairs of row and query head in which nothing passed and the largest element
    stands in, ``key_rows_mean`` the K rows that were read to choose the V rows. ``kept_share`` is the paper's figure of
    kept attention: the mean over samples, layers and query heads of the elements kept, over that of all elements; and
    ``kept_share_std`` the standard deviation of the former over the mean of the latter. ``kept_over_target`` is k~/k of
    the rows with more keys than their layer's k. What is None was not counted when the results were written.
    """

    kept_mean: float
    value_rows_mean: float
    value_rows_p95: float
    value_rows_max: float
    keys_mean: float
    empty_share: float | None = None
    value_rows_p50: float | None = None
    key_rows_mean: float | None = None
    kept_share: float | None = None
    kept_share_std: float | None = None
    kept_over_target: float | None = None

    @property
    def value_row_saving(self) -> float:
        """Tell how many times fewer V rows than dense attention are read."""
        return self.keys_mean / self.value_rows_mean if self.value_rows_mean else math.inf

    @property
    def element_saving(self) -> float:
        """Tell how many times fewer attention elements than dense attention are used."""
        return self.keys_mean / self.kept_mean if self.kept_mean else math.inf


@dataclass(frozen=True)
class LayerReads:
    """Hold what the rows of one layer read.

    Attributes:
        reads: over all its rows and heads; 0 in a layer that has none, such as one with a sliding window.
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
    """Hold how k~/k spreads: over rows and query heads, between the means of heads and those of windows."""

    std: float
    p95: float
    least_head: float
    most_head: float
    least_window: float
    most_window: float
