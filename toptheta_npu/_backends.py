"""Choosing what the operators run, device by device."""

from __future__ import annotations

import os
from contextlib import ExitStack

from ._checks import check_choice
from .errors import TopThetaValueError, shown

VARIABLE = "TOPTHETA_BACKEND"
#: By device; the first one holds without a choice.
BACKENDS = {
    "cpu": ("auto", "native", "fallback"), "cuda": ("auto", "triton", "fallback"), "npu": ("npu", "auto", "fallback")
}  # fmt: skip
_NAMES = ("npu", "native", "triton", "auto", "fallback")
_EXAMPLE = "cpu=native,npu=auto"


class Selector:
    """The choice for one device.

    Attributes:
        device: "cpu", "cuda" or "npu".
        chosen: by `use_backend`; None if the environment variable or the default holds.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.chosen: str | None = None

    @property
    def backend(self) -> str:
        """As chosen by `use_backend`, by the environment variable, or the default.

        Raises:
            TopThetaValueError: the variable cannot be understood.
        """
        if self.chosen is not None:
            return self.chosen
        return by_variable(os.environ.get(VARIABLE, "")).get(self.device, BACKENDS[self.device][0])

    def choose(self, backend: str | None) -> None:
        """Make a choice, or with None undo it."""
        self.chosen = backend


#: What decides what tensors of a device run, by device; each backend enters its own.
SELECTORS: dict[str, Selector] = {}


def use_backend(backend: str, device: str | None = None) -> ExitStack:
    """Choose what the operators run on a CPU, a GPU or an NPU, for the whole process.

    On a CPU: "native", the native kernel, or an error if it cannot be had; "auto", the native kernel if it can be built
    or is kept from before, otherwise the fallback (what holds without a choice); "fallback", the PyTorch fallback.

    On a GPU: "triton", the Triton kernels, or an error if they cannot run; "auto", the Triton kernels if Triton is
    installed, as CUDA builds of torch have it, otherwise the fallback (what holds without a choice); "fallback", the
    PyTorch fallback on the GPU.

    On an NPU: "npu", the op package, or an error if it cannot run (what holds without a choice); "auto", the op package
    if it can be loaded, otherwise the fallback; "fallback", the PyTorch fallback on the NPU. Arguments that the kernel
    does not take are an error under "auto" too.

    Where "auto" falls back, one warning in the log of "toptheta_npu" says why.

    Args:
        backend: one of these.
        device: "cpu", "cuda" or "npu"; None is every device that knows the backend.

    Returns:
        A context manager that restores the former choice; without ``with`` the choice stays. Let one thread at a
        time choose: what a context restores is what held when it was made. The environment variable
        TOPTHETA_BACKEND chooses for a process in which this function is not called: "fallback", or for each device,
        "cpu=native,npu=auto".

    Raises:
        TopThetaValueError: another word, or one that the device does not know.

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
    """Read the text of the environment variable as the backend that it chooses, by device.

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
