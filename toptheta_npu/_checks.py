"""Checks of arguments: every message names the argument, what was expected, what came, the remedy."""

from __future__ import annotations

import math
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor

from .errors import TopThetaCombinationError, TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown

# the kernels know a placement, an SDC mode and a path by its place in these tuples
#: What the numbers of a table are.
PLACEMENTS = ("pre_softmax", "post_softmax")
#: How whole rows are compared with them: probabilities also by the LSE of a sample of keys.
ROW_PLACEMENTS = (*PLACEMENTS, "sampled_softmax")
Sdc = Literal["none", "exact", "exp_threshold", "offline"]
SDC_MODES: tuple[str, ...] = get_args(Sdc)
#: How V is read.
PATHS = ("auto", "gather", "dense")
PrefillMode = Literal["dense", "thresholded"]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (16, 512)
#: A decode step's query tokens of each sequence.
MAX_TOKENS = 16
DEVICES = ("cpu", "cuda", "meta")
NPU = "npu"
#: What the NPU kernel takes, in the words of op_host/geometry.h.
KERNEL_DTYPES = (torch.float16, torch.bfloat16)
KERNEL_STEP = 16
KERNEL_PAGE_ROWS = 512
#: Query heads times tokens.
KERNEL_QUERY_ROWS = 4096
#: Elements between two K rows with several query tokens, which a cube core copies.
KERNEL_TOKENS_STRIDE = 65535
INTEGERS = (torch.int32, torch.int64)
FLOAT32 = (torch.float32,)
_STRIDED = torch.strided
_LARGEST = torch.finfo(torch.float32).max


def shape_text(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def check_int(name: str, value: object, least: int | None, most: int | None = None) -> None:
    """Raise TopThetaTypeError unless ``value`` is an int, TopThetaValueError unless it is in the range."""
    if type(value) is not int:
        raise TopThetaTypeError(name, "an int", shown(value))
    if (least is not None and value < least) or (most is not None and value > most):
        wanted = f"an int of at least {least}" if most is None else f"an int from {least} to {most}"
        raise TopThetaValueError(name, wanted, shown(value))


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise TopThetaValueError(name, f"one of {', '.join(choices)}", shown(value))


def check_number(name: str, value: Any, *, minimum: float = -math.inf) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TopThetaTypeError(name, "a number", type(value).__name__)
    # comparisons, which torch.compile can trace with a dynamic number; they are false for NaN
    if not (-_LARGEST <= value <= _LARGEST) or value < minimum:
        bound = "" if minimum == -math.inf else f" >= {minimum:g}"
        too_large = -math.inf < value < math.inf and value >= minimum
        wanted = f"a number{bound} that float32 can hold" if too_large else f"a finite number{bound}"
        raise TopThetaValueError(name, wanted, shown(value))


def check_dense(name: str, tensor: Any) -> None:
    """Check that the argument is a tensor whose elements lie at strides, whatever its shape and dtype."""
    if not isinstance(tensor, Tensor) or tensor.layout is not _STRIDED or tensor.is_nested:
        _refuse(name, tensor)


def _refuse(name: str, tensor: Any) -> NoReturn:
    if not isinstance(tensor, Tensor):
        raise TopThetaTypeError(name, "a torch.Tensor", type(tensor).__name__)
    if tensor.is_nested:
        remedy = "pad it, and give the valid keys by actual_seq_lengths"
        raise TopThetaNotImplementedError(name, "a dense tensor", "a nested tensor", remedy)
    got = str(tensor.layout).removeprefix("torch.")
    raise TopThetaNotImplementedError(name, "a dense tensor", f"layout {got}", f"pass {name}.to_dense()")


def check_tensor(
    name: str,
    tensor: Any,
    like: Tensor,
    shape: tuple[int | None, ...] | None,
    dtypes: tuple[torch.dtype, ...],
    shape_names: str = "",
) -> None:
    """Check type, dtype, device, shape (None matches any size) and gradient state of one tensor argument."""
    # as in check_dense, without the cost of a call
    if not isinstance(tensor, Tensor) or tensor.layout is not _STRIDED or tensor.is_nested:
        _refuse(name, tensor)
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        got = str(tensor.dtype).removeprefix("torch.")
        raise TopThetaTypeError(name, f"dtype {wanted}", got, f"convert it with {name}.to(torch.{wanted.split()[0]})")
    # that both are on a CPU is told without making two names of devices
    if tensor is not like and not (tensor.is_cpu and like.is_cpu) and tensor.device != like.device:
        raise TopThetaValueError(
            name, f"a tensor on {like.device}, like query", str(tensor.device), f"move it with {name}.to(query.device)"
        )
    # the plain comparison is the hot path; only an open dimension needs the loop
    if shape is not None and tensor.shape != shape and not _matches(tensor, shape):
        wanted = str(["any" if size is None else size for size in shape]).replace("'", "")
        raise TopThetaValueError(name, f"shape {wanted}{shape_names}", shape_text(tensor))
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TopThetaValueError(
            name,
            "a tensor that does not require grad (the operator is for inference)",
            "requires_grad=True",
            f"call it under torch.no_grad() or pass {name}.detach()",
        )


def _matches(tensor: Tensor, shape: tuple[int | None, ...]) -> bool:
    return tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )


def check_modes(
    placement: str, sdc: str, sdc_gamma: float, discarded_mass: Tensor | None, vmc_argument: str | None
) -> None:
    """Check that placement, SDC and VMC go together; ``vmc_argument`` names the argument that asks for VMC."""
    check_choice("placement", placement, ROW_PLACEMENTS)
    check_choice("sdc", sdc, SDC_MODES)
    check_number("sdc_gamma", sdc_gamma, minimum=0)
    if placement != "pre_softmax" and sdc != "exact":
        remedy = "post-softmax the denominator is exact by construction: use sdc='exact'"
        raise TopThetaCombinationError(f"sdc={sdc!r}", "needs", "placement='pre_softmax'", remedy)
    if sdc == "offline" and discarded_mass is None:
        raise TopThetaValueError(
            "discarded_mass", "the calibrated estimate, since sdc='offline'", "None", "or use sdc='exact'"
        )
    if sdc != "offline" and discarded_mass is not None:
        raise TopThetaCombinationError("discarded_mass", "needs", "sdc='offline'", "leave it out, or use that")
    if sdc == "none" and vmc_argument is not None:
        excluded = "sdc='none', which leaves no mass to give back"
        raise TopThetaCombinationError(vmc_argument, "excludes", excluded, "use sdc='exact', or leave it out")


def check_head_dim(head_dim: int) -> None:
    if not HEAD_DIMS[0] <= head_dim <= HEAD_DIMS[1]:
        raise TopThetaValueError("query", f"head_dim from {HEAD_DIMS[0]} to {HEAD_DIMS[1]}", str(head_dim))


def check_device(query: Tensor, devices: tuple[str, ...] = DEVICES) -> None:
    """Check that the device is one of ``devices`` or an NPU, for which the backend decides what runs."""
    if query.is_cpu and devices[0] == "cpu":  # the name of a device takes longer to make
        return
    kind = query.device.type
    if kind not in devices and kind != NPU:
        wanted = " or ".join((*DEVICES[:2], NPU))
        raise TopThetaNotImplementedError(
            "query", f"a tensor on {wanted}", str(query.device), "move it with query.cpu()"
        )
