"""The kernels compiled for a GPU that is not there: what Triton's interpreter takes, its compiler may refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


class _Driver:
    """What compiling asks of a driver."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return int(self._target.arch)  # of a device that it knows, Triton has the kernels already

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


@contextmanager
def compiling(capability: int) -> Iterator[list[Any]]:
    """Let calls compile their kernels and launch nothing. Give the list of what was compiled."""
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernels.append(run(self, *arguments, grid=grid, warmup=True, **options))
        return kernels[-1]

    active = "_active" if hasattr(driver, "_active") else "active"  # the latter before Triton 3.5
    with mock.patch.object(driver, active, _Driver(capability)), mock.patch.object(JITFunction, "run", compile_only):
        yield kernels
