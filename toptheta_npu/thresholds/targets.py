"""Says what the rows of a table aim at: how many elements, and which rows are dense."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .grid import ThresholdGrid
from .kinds import MAX_LENGTH

#: Elements to keep per row unless the caller says otherwise.
DEFAULT_K = 128


@dataclass(frozen=True)
class Target:
    """Say what rows aim at.

    Attributes:
        k: elements to keep, and at least the layer's ``layer_k``.
        dense_below: rows of fewer keys are dense, also beyond the longest row with a threshold of its own.
    """

    k: int
    dense_below: int = 0

    def check(self, table: ThresholdGrid) -> None:
        """Raise a typed error unless ``table`` answers this."""
        table.layer_targets(self.k)
        if type(self.dense_below) is not int:
            raise TopThetaTypeError("dense_below", "an int", shown(self.dense_below))
        if not 0 <= self.dense_below <= MAX_LENGTH:
            raise TopThetaValueError("dense_below", f"0 to {MAX_LENGTH}", shown(self.dense_below))
