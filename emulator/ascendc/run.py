"""Runs a kernel on the host model."""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from .arguments import ROLES, Argument, GmBytes, gm_memory
from .build import Kernel, build_kernel
from .library import CArgument, COptions, CTimelineOptions, KernelLibrary, load
from .results import Finding, KernelError, SyncSite, Traffic
from .timeline import COLUMNS, Column, Timeline, timeline_from

Mode = Literal["cold", "hot"]


class LaunchError(ValueError):
    """A launch that the machine refuses; the text names the option, what was expected and what came."""


class KernelRun:
    """A finished run: outputs are in the arrays that were passed, everything else is here.

    Attributes:
        findings: errors of the kernel, at most one per check and source line.
        sync_sites: every line that executed a sync call.
        traffic: by argument name, in the order of the arguments.
        completed: whether every block reached the end of the kernel.
    """

    def __init__(self, library: KernelLibrary, handle: int) -> None:
        self._library = library
        self._handle = handle
        self._free = weakref.finalize(self, library.free, handle)
        report = json.loads(library.report(handle))
        self.completed: bool = report["completed"]
        self.findings = [Finding(**finding) for finding in report["findings"]]
        self.sync_sites = [SyncSite(**site) for site in report["sync_sites"]]
        self.traffic = {entry["buffer"]: Traffic(**entry) for entry in report["traffic"]}

    @property
    def checks(self) -> list[str]:
        """The classes of the findings, each once, sorted."""
        return sorted({finding.check for finding in self.findings})

    def require_clean(self, *, allow: Collection[str] = ()) -> KernelRun:
        """Raise KernelError if there are findings of a check that is not in `allow`; return the run itself."""
        bad = [finding for finding in self.findings if finding.check not in allow]
        if bad:
            raise KernelError(bad)
        return self

    def timeline(
        self, mode: Mode = "cold", *, column: Column = "expected", bank_conflicts: bool | None = None, **cost: float
    ) -> Timeline:
        """Compute the modelled, uncalibrated time of the run.

        Args:
            mode: "cold" (data in HBM) or "hot" (data in the L2).
            column: the constants: "optimistic", "expected" or "pessimistic", as machine/cost.h has them.
            bank_conflicts: with the estimated bank conflicts of the vector pipe; left out, the pessimistic column
                alone has them.
            **cost: constants of machine/cost.h by name that differ from the column's, such as
                sync_all_microseconds=0.

        Raises:
            LaunchError: the run was made with trace=False, or the kernel did not reach its end.
        """
        options = self._timeline_options(mode, column, bank_conflicts, cost)
        text = self._library.timeline(self._handle, ctypes.byref(options))
        if text is None:
            raise LaunchError(self._error())
        return timeline_from(json.loads(text), mode, column, bool(options.bank_conflicts), options.cost.gigahertz)

    def write_trace(
        self, path: Path | str, mode: Mode = "cold", *, column: Column = "expected",
        bank_conflicts: bool | None = None, **cost: float,
    ) -> None:  # fmt: skip
        """Write the timeline as a Chrome trace, which ui.perfetto.dev opens: a process per core, a thread per pipe."""
        options = self._timeline_options(mode, column, bank_conflicts, cost)
        if not self._library.write_trace(self._handle, ctypes.byref(options), str(path).encode()):
            raise LaunchError(self._error())

    def summary(self) -> str:
        """Describe findings, traffic and both modelled times in text."""
        lines = [f"{len(self.findings)} findings", *(f"  {finding}" for finding in self.findings), "traffic"]
        for name, traffic in self.traffic.items():
            lines.append(
                f"  {name:<16} read {traffic.bytes_read:>12} bytes in {traffic.read_commands:>7} commands, "
                f"written {traffic.bytes_written:>12} bytes in {traffic.write_commands:>7} commands"
            )
        if self.completed:
            lines += [self.timeline("cold").summary(), self.timeline("hot").summary()]
        return "\n".join(lines)

    def _timeline_options(
        self, mode: Mode, column: Column, bank_conflicts: bool | None, cost: dict[str, float]
    ) -> CTimelineOptions:
        if mode not in ("cold", "hot"):
            raise LaunchError(f"mode: expected cold or hot, got {mode!r}")
        if column not in COLUMNS:
            raise LaunchError(f"column: expected one of {', '.join(COLUMNS)}, got {column!r}")
        if bank_conflicts is None:
            bank_conflicts = column == "pessimistic"
        return CTimelineOptions(mode == "hot", bank_conflicts, self._library.cost(cost, column))

    def _error(self) -> str:
        return str(self._library.error(self._handle).decode())


def run_kernel(
    kernel: Kernel | Path | str,
    arguments: Sequence[Argument],
    *,
    blocks: int = 1,
    tiling_key: int = 0,
    cores: int = 48,
    auto_sync: bool = False,
    checks: bool = True,
    trace: bool = True,
    suppress: str | Sequence[str] = (),
    host_threads: int = 0,
    defect: str = "",
) -> KernelRun:
    """Run a kernel on the host model of Ascend C and return what was found.

    Args:
        kernel: a Kernel, or the path of a source that needs no options.
        arguments: (name, value, role) for every pointer of the kernel, in order, at most 40. The value is a numpy
            array or a CPU torch tensor of any dtype, bytes (for tiling data), None for nullptr, or, for the role
            workspace, a number of bytes. Roles: in (must not be written), out, inout, workspace; out and workspace
            start as NaN and -1 and count as unwritten. Outputs are written in place.
        blocks: GetBlockNum().
        tiling_key: selects the branches of TILING_KEY_IS.
        cores: vector cores of the device, two for each cube core; more blocks run in waves.
        auto_sync: as if the compiler inserted the flags and barriers inside a core.
        checks: False does not check the initialisation and the order of memory accesses, and is faster.
        trace: False keeps no timeline.
        suppress: names of sync sites (SyncSite.name, or "file.h:LINE") that do nothing in this run.
        host_threads: blocks that run at the same time; 0 takes the processors of the host, at most 4.
        defect: a planted defect of the machine, by its name in the table of README.md.

    Raises:
        CompileError: the compiler refuses the kernel.
        ArgumentError: an argument that cannot be passed.
        LaunchError: an option out of range, or no function of the kernel's name.
    """
    kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    memory = gm_memory(arguments)
    library = load(build_kernel(kernel))
    options = COptions(
        blocks=blocks,
        cores=cores,
        tiling_key=tiling_key,
        auto_sync=auto_sync,
        checks=checks,
        trace=trace,
        host_threads=host_threads,
        suppress=_suppressed(suppress).encode(),
        defect=defect.encode(),
    )
    handle = library.launch(_entry(library, kernel), _c_arguments(memory), len(memory), ctypes.byref(options))
    error = library.error(handle).decode()
    if error:
        library.free(handle)
        raise LaunchError(error)
    return KernelRun(library, handle)


def _entry(library: KernelLibrary, kernel: Kernel) -> int:
    try:
        return library.entry(kernel.entry_name)
    except AttributeError:
        raise LaunchError(
            f'entry: expected a function extern "C" {kernel.entry_name} in {kernel.path}, but there is none; '
            "name the kernel's function with Kernel(entry=...)"
        ) from None


def _c_arguments(memory: Sequence[GmBytes]) -> Any:
    return (CArgument * len(memory))(
        *(CArgument(part.name.encode(), part.address or None, part.size, ROLES.index(part.role)) for part in memory)
    )


def _suppressed(suppress: str | Sequence[str]) -> str:
    return suppress if isinstance(suppress, str) else ",".join(suppress)
