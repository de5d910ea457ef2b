"""What runs for NPU tensors: the op package, or the PyTorch fallback where it was asked for."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._backends import SELECTORS, Selector
from ..errors import TopThetaBackendError
from ..fallback import IMPLEMENTATIONS
from ..fallback.schemas import SCHEMAS, taking_arguments
from . import loading

_Implementations = Mapping[str, Callable[..., Any]]
_logger = logging.getLogger("toptheta_npu")


class NpuSelector(Selector):
    """Decides between the adapter's kernels and the fallback for the registered operators.

    The adapter registers its kernels with the dispatcher itself, so that a call costs nothing here. As long as it
    is not loaded, NPU tensors reach `run` below, by way of the operators' implementation for all other devices. Once
    it is loaded, the fallback takes its place by being registered over it.
    """

    def __init__(self, schemas: dict[str, str], fallbacks: _Implementations) -> None:
        super().__init__("npu")
        self.schemas = schemas
        self.fallbacks = fallbacks
        self.failure: TopThetaBackendError | None = None
        self._logged: set[str] = set()  # reasons that are in the log
        self._ready = False  # spares the later calls the rest of `uses_kernel`
        self._cover: torch.library.Library | None = None
        self._choosing = threading.Lock()

    def choose(self, backend: str | None) -> None:
        with self._choosing:
            super().choose(backend)
            self.failure = None
            self._ready = False
            self._place_cover()

    def uses_kernel(self) -> bool:
        """Tell whether a call on NPU tensors runs the op package; load it if need be.

        Raises:
            TopThetaBackendError: it cannot, and the backend is "npu".
        """
        if self._ready:
            return True
        backend = self.backend
        if backend == "fallback" or (backend == "auto" and self.failure is not None):
            return False
        try:
            loading.load(self.schemas)
        except TopThetaBackendError as error:
            if backend == "npu":
                raise
            self.failure = error
            if str(error) not in self._logged:
                self._logged.add(str(error))
                _logger.warning("toptheta_npu runs its PyTorch fallback on the NPU: %s", error)
            return False
        with self._choosing:  # another thread may have chosen while the adapter was being loaded
            self._place_cover()
            self._ready = self._cover is None
            return self._ready

    def run(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Run an operator on NPU tensors while the adapter is not loaded."""
        if not self.uses_kernel():
            return self.fallbacks[name](*arguments, **options)
        return getattr(torch.ops.toptheta_npu, name).default(*arguments, **options)

    def _place_cover(self) -> None:
        covered = loading.loaded() is not None and self.backend == "fallback"
        if not covered and self._cover is not None:
            self._cover._destroy()
            self._cover = None
        if covered and self._cover is None:
            self._cover = torch.library.Library("toptheta_npu", "IMPL")
            with warnings.catch_warnings():
                # that one kernel hides another is what is wanted
                warnings.filterwarnings("ignore", "[\\s\\S]*other operators may also be overridden")
                for name, implementation in self.fallbacks.items():
                    self._cover.impl(name, implementation, "PrivateUse1")


NPU_SELECTOR = NpuSelector(SCHEMAS, {name: taking_arguments(name, IMPLEMENTATIONS[name]) for name in SCHEMAS})
SELECTORS["npu"] = NPU_SELECTOR
