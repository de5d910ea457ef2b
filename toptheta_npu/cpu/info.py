"""Finds what the operators run on this CPU, and how the native kernel is built."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .._backends import VARIABLE
from .._compiler import find_compiler
from .._findings import Finding, as_finding
from ..errors import TopThetaBackendError, TopThetaValueError
from . import build, instruction_sets, threads
from .backend import CpuSelector
from .cache import cache_folder

_FALLBACK = "PyTorch fallback"


def findings(selector: CpuSelector, *, probe: bool) -> tuple[Finding, ...]:
    """List the findings; the last says what an operator runs for float32 tensors. See `toptheta_npu.backend_info`."""
    runs = what_runs(selector, probe=probe)  # first, since it may build
    return (
        _found("instruction set", _levels), _found("compiler", lambda: str(find_compiler())),
        _found("cache", lambda: str(cache_folder())), _threads(), runs,
    )  # fmt: skip


def what_runs(selector: CpuSelector, *, probe: bool) -> Finding:
    """Find what an operator runs for float32 tensors. Build nothing unless ``probe`` asks for it."""
    try:
        if selector.backend == "fallback":
            return Finding("operators", f"{_FALLBACK}, as chosen")
        if probe:
            selector.runs_native(torch.float32)
        return Finding("operators", _native(selector))
    except TopThetaBackendError as error:
        return as_finding("operators", _FALLBACK if selector.backend == "auto" else None, error)
    except TopThetaValueError as error:
        variable = VARIABLE if str(error).startswith(VARIABLE) else instruction_sets.VARIABLE
        return Finding("operators", None, str(error), f"unset {variable}")


def _native(selector: CpuSelector) -> str:
    if failure := selector.failures.get(torch.float32):
        raise failure
    native = f"native ({instruction_sets.chosen().name})"
    if build.kept_library("float32"):
        return native
    find_compiler()
    return f"{native}, which the first call builds"


def _found(name: str, find: Callable[[], str]) -> Finding:
    try:
        return Finding(name, find())
    except TopThetaBackendError as error:
        return as_finding(name, None, error)
    except TopThetaValueError as error:
        return Finding(name, None, str(error), f"unset {instruction_sets.VARIABLE}")


def _levels() -> str:
    level = instruction_sets.chosen().name
    others = [other for other in instruction_sets.available() if other != level]
    return level + (f"; this CPU also runs {', '.join(others)}" if others else "")


def _threads() -> Finding:
    runtimes = threads.loaded_runtimes()
    if threads.run_in_parallel() == 0:
        found = "PyTorch has loaded no OpenMP runtime"
        return Finding("threads", "1", found, "install a PyTorch that is built with OpenMP")
    count = threads.thread_count()
    return Finding("threads", f"{count} of PyTorch, over {', '.join(runtimes)}")
