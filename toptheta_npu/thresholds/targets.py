"""Says how many elements the rows of a table aim at: one k for all, or a share of the row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import TopThetaCombinationError, TopThetaTypeError, TopThetaValueError, shown
from .checks import calibrated_with
from .grid import ThresholdGrid
from .kinds import MAX_LENGTH
from .knots import Integers

#: Elements to keep per row unless the caller says otherwise.
DEFAULT_K = 128


@dataclass(frozen=True, eq=False)
class LayerAims:
    """Say what the rows of one layer aim at.

    Attributes:
        elements: int64 [N], by row; or one number for rows of any length.
        dense_below: rows of fewer keys are dense.
    """

    elements: Integers | int
    dense_below: int = 0

    @property
    def least(self) -> int:
        """The fewest elements that a row aims at."""
        return int(np.min(self.elements))

    @property
    def dense_up_to(self) -> Integers:
        """The number of keys up to which a row is dense, [N] or [1]."""
        return np.atleast_1d(np.maximum(self.elements, self.dense_below - 1))


@dataclass(frozen=True, eq=False)
class Target:
    """Say what rows aim at. Exactly one of ``k`` and ``target_kept`` is given.

    Attributes:
        k: elements to keep, whatever the length, and at least the layer's ``layer_k``.
        target_kept: elements to keep as a share of the row's keys, rounded to the nearest number (half to even),
            and at least the smallest calibrated k and the layer's ``layer_k``.
        dense_below: rows of fewer keys are dense, also beyond the longest row with a threshold of its own.
    """

    k: int | None = None
    target_kept: float | None = None
    dense_below: int = 0

    def check(self, table: ThresholdGrid, longest: int) -> None:
        """Raise a typed error unless ``table`` answers this for rows of up to ``longest`` keys."""
        if self.k is None and self.target_kept is None:
            raise TopThetaValueError("k", "k or target_kept", "neither", "pass one of them")
        if self.k is not None and self.target_kept is not None:
            other = f"target_kept={shown(self.target_kept)}"
            raise TopThetaCombinationError(f"k={shown(self.k)}", "excludes", other, "pass one of them")
        if self.k is not None:
            table.layer_targets(self.k)
        else:
            self._check_share(table, longest)
        if type(self.dense_below) is not int:
            raise TopThetaTypeError("dense_below", "an int", shown(self.dense_below))
        if not 0 <= self.dense_below <= MAX_LENGTH:
            raise TopThetaValueError("dense_below", f"0 to {MAX_LENGTH}", shown(self.dense_below))

    def _check_share(self, table: ThresholdGrid, longest: int) -> None:
        share = self.target_kept
        if type(share) not in (int, float):
            raise TopThetaTypeError("target_kept", "a number", shown(share))
        if share is None or not 0 < share < 1:
            raise TopThetaValueError("target_kept", "a share between 0 and 1", shown(share), "0.1 keeps a tenth")
        largest = int(table.k[-1])
        needed = int(np.rint(share * longest))
        if needed > largest:
            most = math.floor(1e4 * largest / longest) / 1e4
            within = int(largest / share)
            raise TopThetaValueError(
                "target_kept", f"at most {most} for rows of up to {longest} keys, k being calibrated up to {largest}",
                f"{shown(share)}, which needs k={needed}",
                (*calibrated_with(needed), f", or pass max_length={within}, beyond which rows use the thresholds of "
                 "that length"),
            )  # fmt: skip

    def aims(self, table: ThresholdGrid, layer: int, lengths: Integers) -> LayerAims:
        """Say what rows of ``lengths`` [N] aim at in ``layer``. The target has been checked."""
        least = table.layer_k[layer]
        if self.k is not None:
            return LayerAims(max(self.k, least), self.dense_below)
        assert self.target_kept is not None  # since the check
        share = np.rint(self.target_kept * lengths.astype(np.float64)).astype(np.int64)
        rows = np.maximum(np.clip(share, int(table.k[0]), int(table.k[-1])), least)
        return LayerAims(rows, self.dense_below)
