"""What each backend takes of what the operators take: one table, and the checks against a row of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import (
    DTYPES,
    KERNEL_DTYPES,
    KERNEL_PAGE_ROWS,
    KERNEL_STEP,
    KERNEL_TOKENS_STRIDE,
    ROW_PLACEMENTS,
    check_tensor,
    shape_text,
)
from ..errors import TopThetaNotImplementedError, TopThetaValueError
from ..fallback.antiquant import PER_CHANNEL
from ..fallback.arguments import TABLE, Arguments


class Limits(NamedTuple):
    """A row of the table; the defaults are what the operators take.

    Attributes:
        dtypes: of the query.
        block_bytes: rows of caches lie without gaps between elements, and are whole blocks of so many bytes.
        page_step, page_rows: pages have a multiple of the one in rows, and the other at most.
        scales_by_row: dtypes of the scales per token and head of int8 caches.
        samples_scales: whether the keys of a sample may have such scales, which do not follow one another.
        parts_of_tokens: whether parts of rows may be of several query tokens.
        placements_of_tokens: of calls with several query tokens.
        stride_of_tokens: elements between two K rows of such calls, at most.
        where, otherwise: the backend in messages, and what else there is.
    """

    dtypes: tuple[torch.dtype, ...] = DTYPES
    block_bytes: int = 0
    page_step: int = 1
    page_rows: int = 2**31 - 1
    scales_by_row: tuple[torch.dtype, ...] = TABLE["key_antiquant_scale"].about.dtypes
    samples_scales: bool = True
    parts_of_tokens: bool = True
    placements_of_tokens: tuple[str, ...] = ROW_PLACEMENTS
    stride_of_tokens: int = 2**63 - 1
    where: str = ""
    otherwise: str = ""


ALL = Limits()
#: By backend; what no row says is for kernels to plan, as how many numbers fit into a core's memory.
LIMITS = {
    "fallback": ALL,
    "native": ALL,
    "triton": ALL,
    "npu": Limits(
        dtypes=KERNEL_DTYPES, block_bytes=2 * KERNEL_STEP, page_step=KERNEL_STEP, page_rows=KERNEL_PAGE_ROWS,
        scales_by_row=(torch.float32,), samples_scales=False, parts_of_tokens=False,
        placements_of_tokens=("pre_softmax",),
        stride_of_tokens=KERNEL_TOKENS_STRIDE, where="on an NPU",
        otherwise="choose the fallback by use_backend('fallback', device='npu')",
    ),
}  # fmt: skip


def check_limits(a: Arguments, limits: Limits, *, part: bool = False) -> None:
    """Refuse what only other backends take: dtypes, sizes, caches with other steps."""
    check_tensor("query", a.query, a.query, None, limits.dtypes)
    if not a.is_of_one_token:
        _check_tokens(a, limits, part)
    if limits.block_bytes:
        _check_blocks(a, limits)
    if a.block_size % limits.page_step or a.block_size > limits.page_rows:
        raise TopThetaNotImplementedError(
            "block_size", f"a multiple of {limits.page_step} up to {limits.page_rows} {limits.where}",
            str(a.block_size), "use a cache with block_size=128, for example",
        )  # fmt: skip
    if limits.block_bytes:
        _check_strides("key", a.key, limits)
        _check_strides("value", a.value, limits)
    if a.key.dtype is torch.int8:
        if a.placement == "sampled_softmax" and a.key_antiquant_mode != PER_CHANNEL and not limits.samples_scales:
            raise TopThetaNotImplementedError(
                "key_antiquant_mode", f"{PER_CHANNEL} with placement='sampled_softmax' {limits.where}",
                str(a.key_antiquant_mode), "use placement='post_softmax'",
            )  # fmt: skip
        _check_scales("key", a.key_antiquant_scale, a.key_antiquant_mode, limits)
        _check_scales("value", a.value_antiquant_scale, a.value_antiquant_mode, limits)


def _check_tokens(a: Arguments, limits: Limits, part: bool) -> None:
    """Refuse what a backend has for one token alone."""
    where = limits.where
    if part and not limits.parts_of_tokens:
        wanted = f"one token per sequence in a part of rows {where}"
        raise TopThetaNotImplementedError("query", wanted, shape_text(a.query), limits.otherwise)
    if a.placement not in limits.placements_of_tokens:
        wanted = f"{' or '.join(map(repr, limits.placements_of_tokens))} with several query tokens {where}"
        raise TopThetaNotImplementedError("placement", wanted, repr(a.placement), limits.otherwise)
    stride = a.key.stride(1 if a.key.dim() == 3 or (a.input_layout == "BSND" and a.block_table is None) else 2)
    if stride > limits.stride_of_tokens:
        wanted = f"rows at most {limits.stride_of_tokens} elements apart with several query tokens {where}"
        raise TopThetaNotImplementedError("key", wanted, str(stride), "pass key.contiguous()")


def _check_blocks(a: Arguments, limits: Limits) -> None:
    step = limits.block_bytes // a.key.element_size()
    if a.head_dim % step:
        of_int8 = " with int8" if a.key.dtype is torch.int8 else ""
        raise TopThetaNotImplementedError(
            "query", f"head_dim a multiple of {step}{of_int8} {limits.where}", str(a.head_dim),
            "pad query, key and value with zeros and keep scale_value",
        )  # fmt: skip


def _check_scales(name: str, scale: Tensor | None, mode: int, limits: Limits) -> None:
    """Refuse scales per token that a backend cannot read in place; those per channel are cast in every step."""
    if scale is None or mode == PER_CHANNEL:
        return
    argument = f"{name}_antiquant_scale"
    if scale.dtype not in limits.scales_by_row:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in limits.scales_by_row)
        raise TopThetaNotImplementedError(
            argument, f"{wanted} {limits.where}, since {name}_antiquant_mode={mode} has a scale for each token",
            str(scale.dtype).removeprefix("torch."), f"keep them in {wanted}",
        )  # fmt: skip
    if limits.block_bytes and scale.stride(-1) != 1 and scale.shape[-1] > 1:
        raise TopThetaValueError(
            argument, "a last stride of 1", str(list(scale.stride())), f"pass {argument}.contiguous()"
        )


def _check_strides(name: str, cache: Tensor, limits: Limits) -> None:
    *outer, last = cache.stride()
    remedy = f"pass {name}.contiguous()"
    step = limits.block_bytes // cache.element_size()
    if last != 1:
        raise TopThetaValueError(name, "a last stride of 1", str([*outer, last]), remedy)
    if any(stride % step and size > 1 for size, stride in zip(cache.shape, outer, strict=False)):
        wanted = f"strides that are multiples of {step} elements"
        raise TopThetaValueError(name, wanted, str([*outer, last]), remedy)
