"""The modelled, uncalibrated time of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

CoreKind = Literal["vector", "cube"]
#: The sets of constants in machine/cost.h.
Column = Literal["optimistic", "expected", "pessimistic"]
COLUMNS: tuple[Column, ...] = ("optimistic", "expected", "pessimistic")
#: The pipes of each kind of core.
PIPES: dict[CoreKind, tuple[str, ...]] = {
    "vector": ("S", "V", "MTE2", "MTE3"),
    "cube": ("S", "M", "MTE1", "MTE2", "FIX"),
}
_BAR = 40


@dataclass(frozen=True)
class CoreTimes:
    """One core of a block: which of the device it is, begin and end in microseconds, busy cycles by pipe."""

    block: int
    kind: CoreKind
    core: int
    begin_us: float
    end_us: float
    busy_cycles: dict[str, float]


@dataclass(frozen=True)
class Timeline:
    """The time of a run as the cost model sees it. Modelled, uncalibrated: for comparing kernels, not a latency.

    Attributes:
        mode: "cold" (data comes from HBM) or "hot" (from the L2).
        column: the constants: "optimistic", "expected" or "pessimistic".
        bank_conflicts: whether the estimated bank conflicts are in the time.
        microseconds: from the start of the first block to the end of the last; without the launch.
        launch_microseconds: what the launch takes besides, on all cores.
        cycles: the same in cycles.
        core_times: in the order of the block index, the cube core of a block before its vector cores.
    """

    mode: str
    column: Column
    bank_conflicts: bool
    microseconds: float
    launch_microseconds: float
    cycles: float
    core_times: list[CoreTimes] = field(repr=False)

    @property
    def with_launch(self) -> float:
        """Microseconds with the launch."""
        return self.microseconds + self.launch_microseconds

    @property
    def cores(self) -> int:
        """How many cores worked."""
        return len({times.core for times in self.core_times})

    @property
    def kinds(self) -> list[CoreKind]:
        """The kinds of cores that worked."""
        return sorted({times.kind for times in self.core_times})

    def busy_cycles(self, pipe: str, core: int | None = None, *, kind: CoreKind = "vector") -> float:
        """Count the cycles in which `pipe` works: on `core`, or on the average of all cores of `kind` that work."""
        if core is not None:
            return sum(times.busy_cycles[pipe] for times in self.core_times if times.core == core)
        ours = [times for times in self.core_times if times.kind == kind]
        return sum(times.busy_cycles[pipe] for times in ours) / max(1, len({times.core for times in ours}))

    def busy_share(self, pipe: str, core: int | None = None, *, kind: CoreKind = "vector") -> float:
        """Compute `busy_cycles` as a share of the whole time, 0 to 1."""
        return self.busy_cycles(pipe, core, kind=kind) / self.cycles if self.cycles else 0.0

    def summary(self) -> str:
        """Draw a bar per pipe in a few lines of text."""
        conflicts = ", with bank conflicts" if self.bank_conflicts else ""
        lines = [
            f"{self.mode}, {self.column}{conflicts}: {self.microseconds:.2f} us, {self.cycles:.0f} cycles, "
            f"{self.with_launch:.2f} us with the launch, "
            f"{len({times.block for times in self.core_times})} blocks on {self.cores} cores (modelled, uncalibrated)"
        ]
        for kind in self.kinds:
            lines += [f"  {kind} cores"] * (len(self.kinds) > 1)
            for pipe in PIPES[kind]:
                share = self.busy_share(pipe, kind=kind)
                bar = "#" * round(share * _BAR)
                cycles = self.busy_cycles(pipe, kind=kind)
                lines.append(f"  {pipe:<4} |{bar:<{_BAR}}| {share:6.1%}  {cycles:10.0f} cycles per core")
        return "\n".join(lines)


def timeline_from(
    report: dict[str, Any], mode: str, column: Column, bank_conflicts: bool, gigahertz: float
) -> Timeline:
    """Make a Timeline from what the machine reports in cycles of a clock of `gigahertz`."""
    per_us = gigahertz * 1e3
    cores = [
        CoreTimes(core["block"], core["kind"], core["core"], core["begin"] / per_us, core["end"] / per_us, core["busy"])
        for core in report["cores"]
    ]
    cycles = report["cycles"]
    return Timeline(mode, column, bank_conflicts, cycles / per_us, report["launch_microseconds"], cycles, cores)
