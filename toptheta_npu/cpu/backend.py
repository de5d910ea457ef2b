"""Chooses the native kernel or the PyTorch fallback for CPU tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from .._backends import SELECTORS, Selector
from .._value_checks import check_step_values
from ..errors import TopThetaBackendError
from ..fallback import IMPLEMENTATIONS
from ..fallback.arguments import Arguments
from .build import ELEMENTS

_Implementation = Callable[[Arguments], Any]
_logger = logging.getLogger("toptheta_npu")


class CpuSelector(Selector):
    """Decides between the native kernel and the fallback, once per operator and dtype and choice.

    Attributes:
        failures: why the native kernel does not run, by dtype, since the last choice.
    """

    def __init__(self, fallbacks: Mapping[str, _Implementation]) -> None:
        super().__init__("cpu")
        self.fallbacks = fallbacks
        self.failures: dict[torch.dtype, TopThetaBackendError] = {}
        self._decided: dict[tuple[str, torch.dtype], _Implementation] = {}
        self._logged: set[str] = set()  # reasons that are in the log

    def choose(self, backend: str | None) -> None:
        super().choose(backend)
        # new ones: a first call in another thread, which may be building, writes to those of its own choice
        self.failures, self._decided = {}, {}

    def implementation(self, name: str, dtype: torch.dtype) -> _Implementation:
        """Choose what an operator runs for tensors of a dtype. The first call may build it, later ones cost nothing.

        Raises:
            TopThetaBackendError: the native kernel cannot run, and the backend is "native".
            TopThetaValueError: an environment variable cannot be understood.
        """
        return self._decided.get((name, dtype)) or self._decide(name, dtype)

    def runner(self, name: str) -> _Implementation:
        """Make an operator that runs what is decided at the time of each call."""

        def run(arguments: Arguments) -> Any:
            dtype = arguments.query.dtype
            # as `implementation`, without the cost of a call
            return (self._decided.get((name, dtype)) or self._decide(name, dtype))(arguments)

        return run

    def runs_native(self, dtype: torch.dtype) -> bool:
        """Tell whether operators run the native kernel for a dtype; load it if need be.

        Raises:
            As `implementation`.
        """
        name = next(iter(self.fallbacks))
        return self.implementation(name, dtype) is not self.fallbacks[name]

    def _decide(self, name: str, dtype: torch.dtype) -> _Implementation:
        decided, failures = self._decided, self.failures
        operators = self._native_operators(dtype, failures)
        chosen: _Implementation = self.fallbacks[name] if operators is None else getattr(operators, name)
        decided[name, dtype] = chosen
        return chosen

    def _native_operators(
        self, dtype: torch.dtype, failures: dict[torch.dtype, TopThetaBackendError]
    ) -> ModuleType | None:
        """Load the native operators for a dtype. Return None for the fallback, and note why in ``failures``."""
        backend = self.backend
        if backend == "fallback" or dtype in failures or str(dtype).removeprefix("torch.") not in ELEMENTS:
            return None
        operators = _import_operators()
        try:
            operators.load(dtype)
        except TopThetaBackendError as error:
            if backend == "native":
                raise
            failures[dtype] = error
            if str(error) not in self._logged:
                self._logged.add(str(error))
                _logger.warning("toptheta_npu runs its PyTorch fallback on the CPU: %s", error)
            return None
        return operators


def _import_operators() -> ModuleType:
    from . import operators

    return operators


def checking_values(implementation: _Implementation) -> _Implementation:
    """Put a check of tensor values before the fallback. A CPU sees them for free; the kernel has its own check."""

    def run(arguments: Arguments) -> Any:
        check_step_values(arguments)
        return implementation(arguments)

    return run


CPU_SELECTOR = CpuSelector({name: checking_values(run) for name, run in IMPLEMENTATIONS.items()})
SELECTORS["cpu"] = CPU_SELECTOR
