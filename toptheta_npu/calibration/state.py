"""The part of a calibration that gathers scores, from which thresholds are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .._sealed import STATE_KEY, Kind
from ..thresholds import ThresholdTable
from .arrays import Arrays
from .calibrator import Calibrator
from .part import PART_FIELDS, PartState

KIND = Kind(
    "the state of a calibration", STATE_KEY, {2: {**PART_FIELDS, "discarded": (dict, type(None))}},
    "calibrate from the start without it",
)  # fmt: skip


@dataclass(kw_only=True)
class CalibrationState(PartState):
    """Hold one part of a calibration.

    Attributes:
        calibrator: what was gathered.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> calibrator = Calibrator(1, 2, k=[8], longest=64, layer_k=[0])
        >>> state = CalibrationState(calibrator=calibrator, fingerprint="demo", dtype="float32", run={}, provenance={})
        >>> state.save(Path(tempfile.mkdtemp()) / "state")
    """

    KIND: ClassVar[Kind] = KIND

    calibrator: Calibrator

    def settings(self) -> Mapping[str, object]:
        """Give what the calibrator was asked for."""
        return dataclasses.asdict(self.calibrator.settings)

    def gathered(self) -> tuple[dict[str, Any], Arrays]:
        """Give the state of the calibrator."""
        return self.calibrator.state()

    @staticmethod
    def of_gathered(header: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
        """Make the calibrator."""
        return {"calibrator": Calibrator.from_state(header, arrays)}

    def merge(self, other: CalibrationState) -> None:
        """Add what the calibrator of ``other`` has gathered."""
        self.calibrator.merge(other.calibrator)

    def table(self) -> ThresholdTable:
        """Make the thresholds of what was seen.

        Raises:
            TopThetaValueError: a layer was never observed, or no row was longer than some k.
        """
        sizes = {"sequences": str(len(self.seen)), "tokens": str(sum(each.tokens for each in self.seen))}
        return self.calibrator.finish(fingerprint=self.fingerprint, provenance={**sizes, **self.run, **self.provenance})
