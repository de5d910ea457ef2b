"""What runs for CUDA tensors: the Triton kernels, or the PyTorch fallback."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from .._backends import SELECTORS, Selector
from .._findings import Finding, as_finding
from ..errors import TopThetaBackendError, TopThetaValueError
from ..fallback import IMPLEMENTATIONS
from ..fallback.arguments import Arguments

_Implementation = Callable[[Arguments], Any]
#: tl.dot takes bfloat16 from here on.
_MIN_CAPABILITY = (8, 0)
#: Older ones put more into shared memory than some GPUs have.
_MIN_TRITON = (3, 3)
_logger = logging.getLogger("toptheta_npu")


class CudaSelector(Selector):
    """Decides between the Triton kernels and the fallback, once per choice.

    Attributes:
        failure: why the kernels do not run, since the last choice.
    """

    def __init__(self, fallbacks: Mapping[str, _Implementation]) -> None:
        super().__init__("cuda")
        self.fallbacks = fallbacks
        self.failure: TopThetaBackendError | None = None
        self._decided: dict[str, _Implementation] = {}
        self._logged: set[str] = set()  # reasons that are in the log

    def choose(self, backend: str | None) -> None:
        super().choose(backend)
        self.failure = None
        self._decided = {}  # a new one: a first call in another thread writes to that of its own choice

    def runner(self, name: str) -> _Implementation:
        """Make an operator that runs what is decided at the time of each call."""

        def run(arguments: Arguments) -> Any:
            with torch.cuda.device_of(arguments.query):  # Triton launches on the current device
                return (self._decided.get(name) or self._decide(name))(arguments)

        return run

    def kernels(self) -> ModuleType | None:
        """Import the operators over the Triton kernels. Return None for the fallback.

        Raises:
            TopThetaBackendError: they cannot run, and the backend is "triton".
            TopThetaValueError: the environment variable cannot be understood.
        """
        backend = self.backend
        if backend == "fallback":
            return None
        try:
            return _import_operators()
        except TopThetaBackendError as error:
            if backend == "triton":
                raise
            self.failure = error
            if str(error) not in self._logged:
                self._logged.add(str(error))
                _logger.warning("toptheta_npu runs its PyTorch fallback on CUDA: %s", error)
            return None

    def _decide(self, name: str) -> _Implementation:
        decided = self._decided
        kernels = self.kernels()
        implementation: _Implementation = self.fallbacks[name] if kernels is None else getattr(kernels, name)
        decided[name] = implementation
        return implementation


def what_cuda_runs(selector: CudaSelector, *, probe: bool) -> Finding:
    """Find what an operator runs for CUDA tensors, where there is a device; ``probe`` asks the device for its age."""
    try:
        if selector.backend == "fallback":
            return Finding("operators", "PyTorch fallback, as chosen")
        version = _import_triton().__version__
        if probe:
            _check_device()
        return Finding("operators", f"Triton kernels, Triton {version}")
    except TopThetaBackendError as error:
        return as_finding("operators", "PyTorch fallback" if selector.backend == "auto" else None, error)
    except TopThetaValueError as error:
        return Finding("operators", None, str(error), "unset TOPTHETA_BACKEND")


def _import_triton() -> ModuleType:
    try:
        triton = importlib.import_module("triton")
    except Exception as error:  # a broken installation raises what it likes
        remedy = "pip install triton, or choose toptheta_npu.use_backend('fallback', device='cuda')"
        raise TopThetaBackendError("triton", "Triton, which CUDA builds of torch bring", str(error), remedy) from error
    if tuple(map(int, triton.__version__.split(".")[:2])) < _MIN_TRITON:
        expected = "Triton {}.{} or newer, which comes with torch 2.7".format(*_MIN_TRITON)
        remedy = "update torch, or choose toptheta_npu.use_backend('fallback', device='cuda')"
        raise TopThetaBackendError("triton", expected, triton.__version__, remedy)
    return triton


def _import_operators() -> ModuleType:
    _import_triton()
    _check_device()
    from . import operators

    return operators


def _check_device() -> None:
    capability = _capability()
    if capability is not None and capability < _MIN_CAPABILITY:
        expected, got = (".".join(map(str, numbers)) for numbers in (_MIN_CAPABILITY, capability))
        remedy = "choose toptheta_npu.use_backend('fallback', device='cuda')"
        raise TopThetaBackendError("device", f"a GPU of compute capability {expected} or more", got, remedy)


def _capability() -> tuple[int, int] | None:
    """Ask NVIDIA's first device; None if there is none."""
    if torch.version.hip is not None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability()


CUDA_SELECTOR = CudaSelector(IMPLEMENTATIONS)
SELECTORS["cuda"] = CUDA_SELECTOR
