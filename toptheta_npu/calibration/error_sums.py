"""Sums up what rows lose under thresholds: every head alone at every k, then whole layers under budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaValueError
from ..thresholds.budget import aims_of, levels_at, path_of_prices
from ..thresholds.curves import ErrorCurves
from ..thresholds.grid import ThresholdGrid
from ..thresholds.knots import Floats, Integers, bucket_of
from .fixed_point import FixedPointSums

#: Budgets that are measured with all heads together.
PATH = 12


class HeadErrors(NamedTuple):
    """Hold squared errors [1 + K, Hq, rows] of each head alone in some rows of a layer, and their lengths [rows]."""

    layer: int
    error: Tensor
    lengths: Tensor


class PathErrors(NamedTuple):
    """Hold squared errors [P, rows] of a layer under budgets, V rows [P, Hkv, rows], and the lengths [rows]."""

    layer: int
    error: Tensor
    value_rows: Tensor
    lengths: Tensor


class ErrorSums:
    """Sum up errors at ``lengths``: of heads in the first pass, and of budgets, chosen by these, in the second.

    Args:
        table: whose thresholds are used.
        lengths: ascending row lengths; every row counts for the nearest in the logarithm.
        dense_layers: layers that are not looked at.
    """

    def __init__(
        self, table: ThresholdGrid, lengths: Sequence[int], dense_layers: Sequence[int], kv_heads: int
    ) -> None:
        self.lengths, self.dense_layers, self.num_heads = list(lengths), tuple(dense_layers), table.num_heads
        self._aims = aims_of(table)
        layers, heads, count = table.num_layers, table.num_heads, len(self.lengths)
        self._heads = FixedPointSums((len(self._aims), layers, heads, count))
        self._path = FixedPointSums((PATH, layers, count))
        self._value_rows: Integers = np.zeros((PATH, layers, kv_heads, count), dtype=np.int64)
        self._counts: Integers = np.zeros((2, layers, count), dtype=np.int64)
        self._prices: list[float] = []

    def add(self, seen: HeadErrors | PathErrors) -> None:
        """Add some rows."""
        buckets = bucket_of(seen.lengths, self.lengths).numpy()
        is_path = isinstance(seen, PathErrors)
        np.add.at(self._counts[int(is_path), seen.layer], buckets, 1)
        if isinstance(seen, HeadErrors):
            for level, error in enumerate(seen.error.numpy()):
                self._heads.add(error, buckets, (level, seen.layer))
            return
        for budget, (error, rows) in enumerate(zip(seen.error.numpy(), seen.value_rows.numpy(), strict=True)):
            self._path.add(error, buckets, (budget, seen.layer))
            np.add.at(self._value_rows[budget, seen.layer].T, buckets, rows.T)

    def path(self, alone: bool, like: ErrorCurves | None = None) -> Tensor:
        """Choose the budgets of the second pass: levels, int64 [P, L, Hq].

        Args:
            alone: whether a head may keep its largest element only.
            like: curves whose budgets to take; None: choose by what the first pass has found.
        """
        if like is None:
            # rounded as the table holds it: a price lies where one head changes its mind
            error = _float32(self._mean_of_heads()[..., -1])
            self._prices = path_of_prices(error, self._aims, PATH, alone)
        else:
            error, self._prices = like.error[..., -1], like.price.tolist()
        return torch.stack([levels_at(error, self._aims, price, alone) for price in self._prices])

    def curves(self, sdc: str, vmc: bool) -> ErrorCurves:
        """Make the curves of both passes.

        Raises:
            TopThetaValueError: no row came near one of the lengths.
        """
        layer = next(layer for layer in range(self._counts.shape[1]) if layer not in self.dense_layers)
        empty = [
            length for length, count in zip(self.lengths, self._counts[1, layer].tolist(), strict=True) if not count
        ]
        if empty:
            raise TopThetaValueError("lengths", "row lengths near which there are rows", f"none near {empty}")
        count = len(self._prices)
        rows = np.maximum(self._counts[1], 1)
        return ErrorCurves(
            lengths=torch.tensor(self.lengths), counts=torch.from_numpy(self._counts[1, layer].copy()),
            error=_float32(self._mean_of_heads()), price=torch.tensor(self._prices, dtype=torch.float64),
            path_error=_float32(self._path.values()[:count] / rows),
            path_value_rows=_float32(self._value_rows[:count] / rows[:, None]), sdc=sdc, vmc=vmc,
        )  # fmt: skip

    def _mean_of_heads(self) -> Floats:
        mean: Floats = self._heads.values() / np.maximum(self._counts[0], 1)[:, None]
        return mean


def _float32(values: Floats) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
