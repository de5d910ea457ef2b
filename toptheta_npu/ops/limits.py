"""The limits of the NPU kernel: arguments that it refuses and all other backends take.

Limits that a kernel plans itself, such as how many numbers fit into a core's memory, are not here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._checks import (
    KERNEL_DTYPES,
    KERNEL_PAGE_ROWS,
    KERNEL_STEP,
    KERNEL_TOKENS_STRIDE,
    check_tensor,
    shape_text,
)
from ..errors import TopThetaNotImplementedError, TopThetaValueError
from ..fallback.antiquant import PER_CHANNEL
from ..fallback.arguments import Arguments

_WHERE = "on an NPU"
_FALLBACK = "choose the fallback by use_backend('fallback', device='npu')"
#: The size in bytes of a cache row is a multiple of this.
_BLOCK_BYTES = 2 * KERNEL_STEP


def check_limits(a: Arguments, *, part: bool = False) -> None:
    """Refuse dtypes, sizes and cache strides that only other backends take."""
    check_tensor("query", a.query, a.query, None, KERNEL_DTYPES)
    if not a.is_of_one_token:
        _check_tokens(a, part)
    step = _BLOCK_BYTES // a.key.element_size()
    if a.head_dim % step:
        of_int8 = " with int8" if a.key.dtype is torch.int8 else ""
        raise TopThetaNotImplementedError(
            "query", f"head_dim a multiple of {step}{of_int8} {_WHERE}", str(a.head_dim),
            "pad query, key and value with zeros and keep scale_value",
        )  # fmt: skip
    if a.block_size % KERNEL_STEP or a.block_size > KERNEL_PAGE_ROWS:
        raise TopThetaNotImplementedError(
            "block_size", f"a multiple of {KERNEL_STEP} up to {KERNEL_PAGE_ROWS} {_WHERE}", str(a.block_size),
            "use a cache with block_size=128, for example",
        )  # fmt: skip
    _check_strides("key", a.key)
    _check_strides("value", a.value)
    if a.key.dtype is torch.int8:
        if a.placement == "sampled_softmax" and a.key_antiquant_mode != PER_CHANNEL:
            raise TopThetaNotImplementedError(
                "key_antiquant_mode", f"{PER_CHANNEL} with placement='sampled_softmax' {_WHERE}",
                str(a.key_antiquant_mode), "use placement='post_softmax'",
            )  # fmt: skip
        _check_scales("key", a.key_antiquant_scale, a.key_antiquant_mode)
        _check_scales("value", a.value_antiquant_scale, a.value_antiquant_mode)


def _check_tokens(a: Arguments, part: bool) -> None:
    """Refuse features that the kernel has for one token only."""
    if part:
        wanted = f"one token per sequence in a part of rows {_WHERE}"
        raise TopThetaNotImplementedError("query", wanted, shape_text(a.query), _FALLBACK)
    if a.placement != "pre_softmax":
        wanted = f"'pre_softmax' with several query tokens {_WHERE}"
        raise TopThetaNotImplementedError("placement", wanted, repr(a.placement), _FALLBACK)
    stride = a.key.stride(1 if a.key.dim() == 3 or (a.input_layout == "BSND" and a.block_table is None) else 2)
    if stride > KERNEL_TOKENS_STRIDE:
        wanted = f"rows at most {KERNEL_TOKENS_STRIDE} elements apart with several query tokens {_WHERE}"
        raise TopThetaNotImplementedError("key", wanted, str(stride), "pass key.contiguous()")


def _check_scales(name: str, scale: Tensor | None, mode: int) -> None:
    """Refuse scales per token that the kernel cannot read in place; those per channel are cast in every step."""
    if scale is None or mode == PER_CHANNEL:
        return
    argument = f"{name}_antiquant_scale"
    if scale.dtype is not torch.float32:
        raise TopThetaNotImplementedError(
            argument, f"float32 {_WHERE}, since {name}_antiquant_mode={mode} has a scale for each token",
            str(scale.dtype).removeprefix("torch."), "keep them in float32",
        )  # fmt: skip
    if scale.stride(-1) != 1 and scale.shape[-1] > 1:
        raise TopThetaValueError(
            argument, "a last stride of 1", str(list(scale.stride())), f"pass {argument}.contiguous()"
        )


def _check_strides(name: str, cache: Tensor) -> None:
    *outer, last = cache.stride()
    remedy = f"pass {name}.contiguous()"
    step = _BLOCK_BYTES // cache.element_size()
    if last != 1:
        raise TopThetaValueError(name, "a last stride of 1", str([*outer, last]), remedy)
    if any(stride % step and size > 1 for size, stride in zip(cache.shape, outer, strict=False)):
        wanted = f"strides that are multiples of {step} elements"
        raise TopThetaValueError(name, wanted, str([*outer, last]), remedy)
