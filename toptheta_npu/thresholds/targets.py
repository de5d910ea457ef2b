"""Says how many elements the rows of a table aim at: one k for all, or a share of the row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .grid import ThresholdGrid
from .kinds import MAX_LENGTH
from .knots import Integers

#: Elements to keep per row unless the caller says otherwise.
DEFAULT_K = 128


@dataclass(frozen=True)
class Target:
    """Say what a row aims at before its layer's minimum.

    Attributes:
        k: elements to keep, whatever the length; None with ``target_kept``.
        target_kept: elements to keep as a share of the row's keys, rounded to the nearest number (half to even),
            and at least the smallest calibrated k; None with ``k``.
        dense_below: rows of fewer keys are dense, also beyond the longest row with a threshold of its own.
    """

    k: int | None = None
    target_kept: float | None = None
    dense_below: int = 0

    def check(self, table: ThresholdGrid, longest: int) -> None:
        """Raise a typed error unless ``table`` answers this for rows of up to ``longest`` keys."""
        if (self.k is None) == (self.target_kept is None):
            got = "neither" if self.k is None else f"k={shown(self.k)} and target_kept={shown(self.target_kept)}"
            raise TopThetaValueError("k", "k or target_kept", got, "pass one of them")
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
                f"calibrate with k={needed} among the knots, or pass max_length={within}, beyond which rows use "
                "the thresholds of that length",
            )  # fmt: skip

    def of(self, lengths: Integers, table: ThresholdGrid) -> Integers:
        """Count the elements to keep in rows of ``lengths`` [N], before a layer's minimum: int64 [N]."""
        if self.target_kept is None:
            return np.full(len(lengths), self.k, dtype=np.int64)
        share = np.rint(self.target_kept * lengths.astype(np.float64)).astype(np.int64)
        return np.clip(share, int(table.k[0]), int(table.k[-1]))

    def least(self, table: ThresholdGrid) -> int:
        """Give the fewest elements that a row aims at, before a layer's minimum."""
        return int(table.k[0]) if self.k is None else self.k
