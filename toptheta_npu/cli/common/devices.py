"""The option --device."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from ..._checks import check_choice
from ...errors import TopThetaValueError

#: What a command can run on; with transformers also "auto".
DEVICES = ("cpu", "cuda", "npu")


def choose_device(device: str | None) -> str:
    """Choose the device to run on; None: the first CUDA device, NPU or CPU that is there.

    Raises:
        TopThetaValueError: it is not there, or accelerate is not.

    Example:
        >>> choose_device("cpu")
        'cpu'
    """
    if device is not None:
        check_choice("--device", device, (*DEVICES, "auto"))
        if device != "auto":
            return check_device(device)
        if find_spec("accelerate") is None:
            expected = "accelerate, which spreads the layers over the devices"
            raise TopThetaValueError("--device", expected, "no such package", "in a clone: pip install '.[hf]'")
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "npu" if hasattr(torch, "npu") and torch.npu.is_available() else "cpu"


def check_device(device: str | None, others: Sequence[str] = ()) -> str:
    """Return the device, if it can be used; ``others`` are what a command takes beside devices.

    Raises:
        TopThetaValueError: none was named, or it is not there; the message says what to type.

    Example:
        >>> check_device("cpu")
        'cpu'
    """
    if device not in DEVICES:
        got = "nothing" if device is None else repr(device)
        raise TopThetaValueError("--device", f"one of {', '.join((*DEVICES, *others))}", got, "such as: --device cpu")
    if device == "cuda" and not torch.cuda.is_available():
        built = f"torch {torch.__version__}" + ("" if torch.version.cuda else ", which is built without CUDA")
        raise TopThetaValueError(
            "--device", "a CUDA device that torch can use", f"none with {built}",
            "install a driver and torch for CUDA (https://pytorch.org), or type --device cpu",
        )  # fmt: skip
    if device == "npu":
        _check_npu()
    return device


def _check_npu() -> None:
    remedy = "see: toptheta doctor; a clone models it without hardware: toptheta benchmark --device host-model"
    if find_spec("torch_npu") is None:
        raise TopThetaValueError("--device", "torch_npu and an Ascend NPU", "no torch_npu", remedy)
    try:
        import torch_npu
    except (ImportError, OSError) as cause:
        reason = str(cause).split("\n")[0]
        raise TopThetaValueError("--device", "torch_npu that can be imported", reason, remedy) from cause
    if not torch_npu.npu.is_available():
        raise TopThetaValueError("--device", "an Ascend NPU that torch_npu can use", "none", remedy)
    from ...npu.backend import NPU_SELECTOR

    NPU_SELECTOR.uses_kernel()  # a missing op package is better told now than after the inputs were made
