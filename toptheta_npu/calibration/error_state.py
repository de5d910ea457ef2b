"""The part of a calibration that sums up what thresholds lose, in two passes over its sequences."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .._sealed import ERRORS_KEY, Kind, checksum
from ..errors import TopThetaValueError
from ..thresholds import ThresholdTable
from ..thresholds.file import content_of
from ..thresholds.grid import ThresholdGrid
from .arrays import Arrays
from .error_sums import ErrorSums
from .part import PART_FIELDS, PartState, WholeSet
from .shards import PartMerger, merged_files, merged_parts

KIND = Kind(
    "the state of error curves", ERRORS_KEY, {1: {**PART_FIELDS, "first": (list, type(None))}},
    "measure from the start without it",
)  # fmt: skip


@dataclass(kw_only=True)
class ErrorState(PartState):
    """Hold one part of a measurement of error curves.

    Attributes:
        sums: what was gathered, in the second pass with all that the first has found in all parts.
        first: of all sequences of the first pass; None in that pass.
    """

    KIND: ClassVar[Kind] = KIND

    sums: ErrorSums
    first: WholeSet | None = None

    def settings(self) -> Mapping[str, object]:
        """Give what the measurement was asked for."""
        return dataclasses.asdict(self.sums.settings)

    def gathered(self) -> tuple[dict[str, Any], Arrays]:
        """Give the settings and the sums."""
        return {"settings": self.settings(), "first": self.first and list(self.first)}, self.sums.state()

    @staticmethod
    def of_gathered(header: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
        """Make the sums."""
        first = None
        if header["first"] is not None:
            digest, total = header["first"]
            first = WholeSet(str(digest), int(total))
        return {"sums": ErrorSums.from_state(header["settings"], arrays), "first": first}

    def merge(self, other: ErrorState) -> None:
        """Add the sums of ``other``."""
        self.sums.merge(other.sums)

    def stage(self) -> str:
        """Say which pass it is, and after which first pass."""
        if self.first is None:
            return "sums of the first pass"
        return f"sums of the second pass after another first one ({self.sums.first_pass()[:12]})"

    def second(self, table: ThresholdGrid, whole: ErrorState) -> ErrorState:
        """Begin the second pass of this part over ``whole``, what the first has found in all parts."""
        return dataclasses.replace(
            self, sums=whole.sums.second(table), first=whole.first or whole.whole, seen=[], whole=None
        )

    def check_same_sequences(self) -> None:
        """Raise TopThetaValueError unless both passes had the same sequences."""
        if self.first is not None and self.whole != self.first:
            raise TopThetaValueError(
                "sequences", "the same in both passes", "others in the second",
                "pass a list, or what gives the same whenever it is read",
            )  # fmt: skip

    def extended(self, table: ThresholdTable) -> ThresholdTable:
        """Extend a copy of ``table`` by the curves of both passes.

        Raises:
            TopThetaValueError: no row came near one of the lengths.
        """
        sizes = {"curve_sequences": len(self.seen), "curve_tokens": sum(each.tokens for each in self.seen)}
        own = {name: str(size) for name, size in sizes.items()}
        provenance = {**table.provenance, **own, **self.provenance}
        return dataclasses.replace(table, curves=self.sums.curves(), provenance=provenance)


def first_pass_of(parts: Sequence[tuple[object, ErrorState]]) -> ErrorState:
    """Give what the first pass has found in all parts, each with its name: their sum, or what one already goes on from.

    Raises:
        TopThetaValueError: a part is missing, not finished, or of another measurement.
    """
    for _, state in parts:
        if state.first is not None:
            return state
    return merged_parts(parts)


def merge_error_curves(table: ThresholdTable, paths: Sequence[str | os.PathLike[str]]) -> ThresholdTable:
    """Extend a copy of ``table`` by the error curves whose shards lie in files, in any order.

    It is the table of a single process, byte for byte.

    Args:
        table: whose thresholds were measured.
        paths: one file per shard, as ``toptheta_npu.models.calibrate_error_curves_shard`` writes them.

    Raises:
        TopThetaTypeError: not a list of paths.
        TopThetaValueError: a file cannot be read, is no finished shard, or of another measurement or table; or a shard
            is missing or there twice.
    """
    return extended_by(table, merged_files(ErrorState, paths))


def extended_by(table: ThresholdTable, merger: PartMerger[ErrorState]) -> ThresholdTable:
    """Do the work of `merge_error_curves` with shards that are added up."""
    state = merger.merged()
    if state.first is None:
        got, remedy = "those of the first", "run every shard once more"
        raise TopThetaValueError("shards", "files of the second pass", got, remedy)
    if state.sums.settings.thresholds != checksum_of(table):
        got = "another"
        raise TopThetaValueError("table", "the table whose thresholds were measured", got, "give that")
    return state.extended(table)


def checksum_of(table: ThresholdTable) -> str:
    """Compute 16 hex digits of a checksum of a table but for its error curves."""
    return checksum(*content_of(dataclasses.replace(table, curves=None)))[:16]
