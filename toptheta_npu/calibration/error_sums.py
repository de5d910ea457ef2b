"""Sums up what rows lose under thresholds: every head alone at every k, then whole layers under budgets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._checks import check_choice, check_int
from ..errors import TopThetaValueError, shown
from ..thresholds.budget import aims_of, levels_along, path_of_prices
from ..thresholds.curves import ErrorCurves
from ..thresholds.grid import ThresholdGrid
from ..thresholds.kinds import MAX_LENGTH
from ..thresholds.knots import Floats, Integers, bucket_of
from .arrays import Arrays, take
from .fixed_point import FixedPointSums
from .row_statistics import rows_of_sequence

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


@dataclass(frozen=True)
class ErrorSettings:
    """Hold what all parts of a measurement have in common, as ``calibrate_error_curves`` was asked for it.

    Attributes:
        thresholds: the checksum of the table that is measured.
        levels: of every head: its largest element only, and the k of the table.
        lengths: ascending row lengths; every row counts for the nearest in the logarithm.
        dense_layers: layers that are not looked at.
    """

    thresholds: str
    levels: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    lengths: Sequence[int]
    dense_layers: Sequence[int]
    sdc: str
    vmc: bool
    row_fraction: float
    seed: int

    def __post_init__(self) -> None:
        for name in ("levels", "num_layers", "num_heads", "num_kv_heads"):
            check_int(name, getattr(self, name), 1)
        for length in self.lengths:
            check_int("lengths", length, 1, MAX_LENGTH)
        check_int("seed", self.seed, None)
        check_choice("sdc", self.sdc, ("exact", "none"))
        if list(self.lengths) != sorted(set(self.lengths)) or not self.lengths:
            raise TopThetaValueError("lengths", "one or more ascending row lengths", str(list(self.lengths)))
        if not 0.0 < self.row_fraction <= 1.0:
            raise TopThetaValueError("row_fraction", "above 0 and at most 1", str(self.row_fraction))
        object.__setattr__(self, "lengths", tuple(self.lengths))
        object.__setattr__(self, "dense_layers", tuple(self.dense_layers))

    def rows(self, count: int, index: int) -> Tensor:
        """Choose which rows of sequence ``index``, of ``count`` rows, are looked at: those that count for a length."""
        chosen = rows_of_sequence(count, self.row_fraction, self.seed, index)
        return chosen[2 * (chosen + 1) ** 2 >= self.lengths[0] ** 2]

    def check_rows(self, counts: Iterable[int]) -> None:
        """Find out before a model runs that there are rows to look at near every length.

        Args:
            counts: rows of every sequence; no more are read than it takes to find such rows.

        Raises:
            TopThetaValueError: near a length there are none.
        """
        empty = set(range(len(self.lengths)))
        for index, count in enumerate(counts):
            empty -= set(bucket_of(self.rows(count, index) + 1, self.lengths).tolist())
            if not empty:
                return
        raise self.no_rows_near([self.lengths[place] for place in sorted(empty)])

    def no_rows_near(self, lengths: Sequence[int]) -> TopThetaValueError:
        """Make the error of lengths that no row came near."""
        got = f"{self.row_fraction}, with none near {', '.join(map(str, lengths))}"
        remedy = "raise it, or feed longer texts or more of them"
        return TopThetaValueError("row_fraction", "a share that picks rows near every length", got, remedy)


class ErrorSums:
    """Sum up errors: of heads in the first pass, and of budgets, chosen by these, in the second.

    Args:
        settings: what is measured.

    Attributes:
        prices: float64 [P] of the budgets, descending; none in the first pass.
    """

    def __init__(self, settings: ErrorSettings) -> None:
        self.settings = settings
        layers, heads, count = settings.num_layers, settings.num_heads, len(settings.lengths)
        self.prices: Floats = np.zeros(0)
        self._heads = FixedPointSums((settings.levels, layers, heads, count))
        self._path = FixedPointSums((PATH, layers, count))
        self._value_rows: Integers = np.zeros((PATH, layers, settings.num_kv_heads, count), dtype=np.int64)
        self._counts: Integers = np.zeros((2, layers, count), dtype=np.int64)

    def add(self, seen: HeadErrors | PathErrors) -> None:
        """Add some rows."""
        buckets = bucket_of(seen.lengths, self.settings.lengths).numpy()
        is_path = isinstance(seen, PathErrors)
        np.add.at(self._counts[int(is_path), seen.layer], buckets, 1)
        if isinstance(seen, HeadErrors):
            for level, error in enumerate(seen.error.numpy()):
                self._heads.add(error, buckets, (level, seen.layer))
            return
        for budget, (error, rows) in enumerate(zip(seen.error.numpy(), seen.value_rows.numpy(), strict=True)):
            self._path.add(error, buckets, (budget, seen.layer))
            np.add.at(self._value_rows[budget, seen.layer].T, buckets, rows.T)

    def merge(self, other: ErrorSums) -> None:
        """Add what ``other``, of the same settings and the same pass, has summed in that pass."""
        if not len(self.prices):
            self._heads.merge(other._heads)
        self._path.merge(other._path)
        self._value_rows += other._value_rows
        current = int(len(self.prices) > 0)
        self._counts[current] += other._counts[current]

    def second(self, table: ThresholdGrid) -> ErrorSums:
        """Begin the second pass over all that the first has found."""
        after = ErrorSums(self.settings)
        after._heads, after._counts[0], after.prices = self._heads, self._counts[0], self.prices
        if not len(self.prices):
            prices = path_of_prices(self.head_errors()[..., -1], aims_of(table), PATH, self.settings.vmc)
            after.prices = np.array(prices)
        return after

    def head_errors(self) -> Tensor:
        """Compute the mean errors of the heads, float32 [1 + K, L, Hq, lengths].

        They are rounded as in a table, since prices lie where a head changes its k.
        """
        return _float32(self._heads.values() / np.maximum(self._counts[0], 1)[:, None])

    def path(self, table: ThresholdGrid) -> Tensor:
        """Give the budgets of the second pass: levels, int64 [P, L, Hq]."""
        return levels_along(self.head_errors()[..., -1], aims_of(table), self.prices.tolist(), self.settings.vmc)

    def first_pass(self) -> str:
        """Compute the checksum of what the second pass has from the first."""
        digest = hashlib.sha256()
        for array in (self._heads.cells, self._counts[0], self.prices):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def curves(self) -> ErrorCurves:
        """Make the curves of both passes.

        Raises:
            TopThetaValueError: no row came near one of the lengths.
        """
        settings = self.settings
        layer = next(layer for layer in range(settings.num_layers) if layer not in settings.dense_layers)
        found = self._counts[1, layer].tolist()
        empty = [length for length, count in zip(settings.lengths, found, strict=True) if not count]
        if empty:
            raise settings.no_rows_near(empty)
        count = len(self.prices)
        rows = np.maximum(self._counts[1], 1)
        return ErrorCurves(
            lengths=torch.tensor(settings.lengths, dtype=torch.int64, device="cpu"),
            counts=torch.tensor(found, dtype=torch.int64, device="cpu"), error=self.head_errors(),
            price=torch.from_numpy(self.prices), path_error=_float32(self._path.values()[:count] / rows),
            path_value_rows=_float32(self._value_rows[:count] / rows[:, None]), sdc=settings.sdc, vmc=settings.vmc,
        )  # fmt: skip

    def state(self) -> Arrays:
        """Give all sums, the object's own: write them before more rows are added."""
        return {
            "heads": self._heads.cells, "path": self._path.cells, "value_rows": self._value_rows,
            "counts": self._counts, "prices": self.prices,
        }  # fmt: skip

    @classmethod
    def from_state(cls, settings: Mapping[str, Any], arrays: Arrays) -> ErrorSums:
        """Make the sums that :meth:`state` was taken of.

        Raises:
            TopThetaTypeError, TopThetaValueError: these are no such sums; nothing of them is trusted.
        """
        checked = ErrorSettings(**settings)
        # before memory is taken for what the settings say
        expected = checked.levels * checked.num_layers * checked.num_heads * len(checked.lengths)
        if sum(array.size for array in arrays.values()) < expected:
            raise TopThetaValueError("state", f"arrays of {expected} numbers and more", "fewer")
        sums, rest = cls(checked), dict(arrays)
        sums._heads.cells = take(rest, "heads", like=sums._heads.cells)
        sums._path.cells = take(rest, "path", like=sums._path.cells)
        sums._value_rows = take(rest, "value_rows", like=sums._value_rows)
        sums._counts = take(rest, "counts", like=sums._counts)
        sums.prices = take(rest, "prices", like=np.zeros(len(rest.get("prices", ()))))
        if len(sums.prices) > PATH:
            raise TopThetaValueError("prices", f"at most {PATH}", str(len(sums.prices)))
        if rest:
            raise TopThetaValueError("state", "no other arrays", shown(sorted(rest)))
        return sums


def _float32(values: Floats) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
