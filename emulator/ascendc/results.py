"""What a run of a kernel leaves behind: findings, sync sites, traffic. Plain records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True)
class Finding:
    """An error of the kernel.

    Attributes:
        check: the class of error, a name of `Check` in machine/findings.h without its k.
        file, line: the place in the kernel.
        call: the API call that is at fault.
        what: what happened; addresses as "buffer name + byte offset".
        remedy: what to change.
        block: the first block that has it.
        count: how often it happened at this place, over all blocks.
    """

    check: str
    file: str
    line: int
    call: str
    what: str
    remedy: str
    block: int
    count: int

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        place = f"{PurePath(self.file).name}:{self.line}: {self.call}" if self.file else "kernel"
        return f"{place}: [{self.check}] {self.what}{times}. Remedy: {self.remedy}."


@dataclass(frozen=True)
class SyncSite:
    """A line of the kernel that executes a sync call.

    Attributes:
        file, line: the place.
        kind: SetFlag, WaitFlag, PipeBarrier, SyncAll, CrossCoreSetFlag or CrossCoreWaitFlag; EnQue, DeQue and the like
            show as the flags that they use.
        count: executions over all blocks.
    """

    file: str
    line: int
    kind: str
    count: int

    @property
    def name(self) -> str:
        """What `run_kernel(suppress=...)` takes to switch this site off."""
        return f"{PurePath(self.file).name}:{self.line}:{self.kind}"


@dataclass(frozen=True)
class Traffic:
    """Bytes and DMA commands between one argument and all cores; scalar accesses are counted apart.

    ``commands_past_l2``: how many of the commands carry the hint to go past the L2 (SetL2CacheHint).
    """

    buffer: str
    bytes_read: int
    bytes_written: int
    read_commands: int
    write_commands: int
    commands_past_l2: int
    scalar_reads: int
    scalar_writes: int


class KernelError(AssertionError):
    """A kernel with findings where none were expected; the text lists them."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        lines = "\n".join(f"  {finding}" for finding in findings)
        super().__init__(f"the kernel has {len(findings)} findings:\n{lines}")
