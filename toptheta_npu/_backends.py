"""Chooses the backend of the operators, device by device."""

from __future__ import annotations

import os
from contextlib import ExitStack

from ._checks import check_choice
from .errors import TopThetaValueError, shown

VARIABLE = "TOPTHETA_BACKEND"
#: The backends of each device; the first is the default.
BACKENDS = {
    "cpu": ("auto", "native", "fallback"), "cuda": ("auto", "triton", "fallback"), "npu": ("npu", "auto", "fallback")
}  # fmt: skip
_NAMES = ("npu", "native", "triton", "auto", "fallback")
_EXAMPLE = "cpu=native,npu=auto"


class Selector:
    """The choice for one device.

    Attributes:
        device: "cpu", "cuda" or "npu".
        chosen: the choice of `use_backend`; None if the environment variable or the default holds.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.chosen: str | None = None

    @property
    def backend(self) -> str:
        """The backend that `use_backend` chose, else the environment variable, else the default.

        Raises:
            TopThetaValueError: the variable cannot be understood.
        """
        if self.chosen is not None:
            return self.chosen
        return by_variable(os.environ.get(VARIABLE, "")).get(self.device, BACKENDS[self.device][0])

    def choose(self, backend: str | None) -> None:
        """Choose ``backend``; None undoes the choice."""
        self.chosen = backend


#: The selector of each device; each backend enters its own.
SELECTORS: dict[str, Selector] = {}


def use_backend(backend: str, device: str | None = None) -> ExitStack:
    """Choose which backend runs the operators on a CPU, a GPU or an NPU, for the whole process.

    CPU:

    - "auto" (default): the native kernel if it is cached or can be built, otherwise the fallback.
    - "native": the native kernel; an error if it cannot be built.
    - "fallback": the PyTorch fallback.

    GPU:

    - "auto" (default): the Triton kernels if Triton is installed, otherwise the fallback. CUDA builds of torch
      include Triton.
    - "triton": the Triton kernels; an error if they cannot run.
    - "fallback": the PyTorch fallback on the GPU.

    NPU:

    - "npu" (default): the op package; an error if it cannot run.
    - "auto": the op package if it can be loaded, otherwise the fallback. Arguments that the kernel does not take
      raise an error here too.
    - "fallback": the PyTorch fallback on the NPU.

    When "auto" falls back, one warning in the log of "toptheta_npu" says why.

    Args:
        backend: name of the backend, as above.
        device: "cpu", "cuda" or "npu"; None means every device that has this backend.

    Returns:
        A context manager that restores the former choice; without ``with`` the choice stays. Let only one thread at a
        time choose, since a context restores the choice that held when it was made. If this function is not called,
        the environment variable TOPTHETA_BACKEND chooses: "fallback", or per device "cpu=native,npu=auto".

    Raises:
        TopThetaValueError: no backend has this name, or the device has no such backend.

    Example:
        >>> import toptheta_npu
        >>> with toptheta_npu.use_backend("fallback", device="npu"):
        ...     print(toptheta_npu.backend_info().backend)
        fallback
    """
    if device is None:
        check_choice("backend", backend, _NAMES)
        devices = _devices_with(backend)
    else:
        check_choice("device", device, tuple(BACKENDS))
        check_choice(f"backend with device={device!r}", backend, BACKENDS[device])
        devices = [device]
    undoing = ExitStack()
    for selector in (SELECTORS[device] for device in devices):
        undoing.callback(selector.choose, selector.chosen)
        selector.choose(backend)
    return undoing


def by_variable(text: str) -> dict[str, str]:
    """Parse the text of the environment variable into the backend of each device.

    Raises:
        TopThetaValueError: it cannot be understood.

    Example:
        >>> by_variable("fallback")
        {'cpu': 'fallback', 'cuda': 'fallback', 'npu': 'fallback'}
        >>> by_variable("cpu=native")
        {'cpu': 'native'}
    """
    if "=" not in text:
        name = text.strip()
        if name and name not in _NAMES:
            raise TopThetaValueError(VARIABLE, f"one of {', '.join(_NAMES)}", shown(text), f"or type {_EXAMPLE}")
        return dict.fromkeys(_devices_with(name), name)
    chosen: dict[str, str] = {}
    for part in text.split(","):
        device, _, name = (word.strip() for word in part.partition("="))
        if device not in BACKENDS or device in chosen:
            expected = f"each of {', '.join(BACKENDS)} at most once"
            raise TopThetaValueError(VARIABLE, expected, shown(text), f"such as {_EXAMPLE}")
        check_choice(f"{VARIABLE} for {device}", name, BACKENDS[device])
        chosen[device] = name
    return chosen


def _devices_with(backend: str) -> list[str]:
    return [device for device, names in BACKENDS.items() if backend in names]
