"""The modelled, uncalibrated time of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PIPES = ("S", "V", "MTE2", "MTE3")
_BAR = 40


@dataclass(frozen=True)
class BlockTimes:
    """One block on its core: begin and end in microseconds, busy cycles by pipe."""

    block: int
    core: int
    begin_us: float
    end_us: float
    busy_cycles: dict[str, float]


@dataclass(frozen=True)
class Timeline:
    """The time of a run as the cost model sees it. Modelled, uncalibrated: for comparing kernels, not a latency.

    Attributes:
        mode: "cold" (data comes from HBM) or "hot" (from the L2).
        bank_conflicts: whether the estimated bank conflicts are in the time.
        microseconds: from the start of the first block to the end of the last; without launch overhead.
        cycles: the same in cycles.
        blocks: in the order of the block index.
    """

    mode: str
    bank_conflicts: bool
    microseconds: float
    cycles: float
    blocks: list[BlockTimes] = field(repr=False)

    @property
    def cores(self) -> int:
        """How many cores worked."""
        return len({block.core for block in self.blocks})

    def busy_cycles(self, pipe: str, core: int | None = None) -> float:
        """Cycles in which `pipe` works: on `core`, or on the average of all cores that work."""
        busy = sum(block.busy_cycles[pipe] for block in self.blocks if core is None or block.core == core)
        return busy if core is not None else busy / self.cores

    def busy_share(self, pipe: str, core: int | None = None) -> float:
        """The same as a share of the whole time, 0 to 1."""
        return self.busy_cycles(pipe, core) / self.cycles if self.cycles else 0.0

    def summary(self) -> str:
        """A few lines of text with a bar per pipe."""
        conflicts = ", with bank conflicts" if self.bank_conflicts else ""
        lines = [
            f"{self.mode}{conflicts}: {self.microseconds:.2f} us, {self.cycles:.0f} cycles, "
            f"{len(self.blocks)} blocks on {self.cores} cores (modelled, uncalibrated)"
        ]
        for pipe in PIPES:
            share = self.busy_share(pipe)
            bar = "#" * round(share * _BAR)
            lines.append(f"  {pipe:<4} |{bar:<{_BAR}}| {share:6.1%}  {self.busy_cycles(pipe):10.0f} cycles per core")
        return "\n".join(lines)


def timeline_from(report: dict[str, Any], mode: str, bank_conflicts: bool, gigahertz: float) -> Timeline:
    """A Timeline from what the machine reports in cycles of a clock of `gigahertz`."""
    per_us = gigahertz * 1e3
    blocks = [
        BlockTimes(index, block["core"], block["begin"] / per_us, block["end"] / per_us, block["busy"])
        for index, block in enumerate(report["blocks"])
    ]
    return Timeline(mode, bank_conflicts, report["cycles"] / per_us, report["cycles"], blocks)
