"""The target of a table's rows: how many elements to keep, and which rows are dense."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .grid import ThresholdGrid
from .kinds import MAX_LENGTH

#: Elements to keep per row unless the caller says otherwise.
DEFAULT_K = 128


@dataclass(frozen=True)
class Target:
    """The target of rows.

    Attributes:
        k: elements to keep per row; a layer keeps at least its ``layer_k``.
        dense_below: rows of fewer keys are dense, even beyond the longest row with a threshold of its own.
    """

    k: int
    dense_below: int = 0

    def check(self, table: ThresholdGrid) -> None:
        """Raise a typed error unless ``table`` can serve this target."""
        table.layer_targets(self.k)
        if type(self.dense_below) is not int:
            raise TopThetaTypeError("dense_below", "an int", shown(self.dense_below))
        if not 0 <= self.dense_below <= MAX_LENGTH:
            raise TopThetaValueError("dense_below", f"0 to {MAX_LENGTH}", shown(self.dense_below))
