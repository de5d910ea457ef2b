"""Argument checks of the operator: every message names the argument, what was expected, what came, the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor

from .errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown

QUERY_FORMS = {"BNSD": "[B, Hq, 1, D]", "BSND": "[B, 1, Hq, D]", "BSH": "[B, 1, Hq*D]"}
LAYOUTS = tuple(QUERY_FORMS)
PLACEMENTS = ("pre_softmax", "post_softmax")
PATHS = ("auto", "gather", "dense")
Sdc = Literal["none", "exact", "exp_threshold", "offline"]
SDC_MODES: tuple[str, ...] = get_args(Sdc)
PrefillMode = Literal["dense", "thresholded"]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (16, 512)
DEVICES = ("cpu", "cuda", "meta")
NPU = "npu"
#: What the NPU kernel takes, in the words of op_host/geometry.h.
KERNEL_DTYPES = (torch.float16, torch.bfloat16)
KERNEL_STEP = 16
KERNEL_PAGE_ROWS = 512
INTEGERS = (torch.int32, torch.int64)
FLOAT32 = (torch.float32,)
_STRIDED = torch.strided
_LARGEST = torch.finfo(torch.float32).max

_NO_MASK = "give valid keys by actual_seq_lengths, key_start or block_table"
_NO_QUANTISATION = "quantised caches are not supported; pass float16 or bfloat16 tensors"
#: Arguments of torch_npu.npu_incre_flash_attention that have no meaning here, and the way round.
UNSUPPORTED = {
    "padding_mask": _NO_MASK,
    "atten_mask": _NO_MASK,
    "pse_shift": "positional biases are not supported",
    "kv_padding_size": "use key_start, the index of the first valid key",
    "inner_precise": "leave it out; scores and sums are always float32",
    **dict.fromkeys(
        (
            "antiquant_scale", "antiquant_offset", "dequant_scale1", "quant_scale1", "dequant_scale2",
            "quant_scale2", "quant_offset2",
        ),
        _NO_QUANTISATION,
    ),
}  # fmt: skip


def refuse_unknown(function: str, unsupported: Mapping[str, object]) -> NoReturn:
    """Raise for keyword arguments that ``function`` does not take."""
    name = next(iter(unsupported))
    if name in UNSUPPORTED:
        raise TopThetaNotImplementedError(name, "the argument left out", "a value", UNSUPPORTED[name])
    raise TopThetaTypeError(name, "a known argument", "an unknown name", f"see help({function})")


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
    """A tensor whose elements lie at strides, whatever its shape and dtype."""
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
    """Type, dtype, device, shape (None matches any size) and gradient state of one tensor argument."""
    # as in check_dense, without the cost of a call
    if not isinstance(tensor, Tensor) or tensor.layout is not _STRIDED or tensor.is_nested:
        _refuse(name, tensor)
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        got = str(tensor.dtype).removeprefix("torch.")
        raise TopThetaTypeError(name, f"dtype {wanted}", got, f"convert it with {name}.to(torch.{wanted.split()[0]})")
    if tensor is not like and tensor.device != like.device:
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


def resolve_heads(
    query: Tensor, key: Tensor, num_heads: int | None, num_key_value_heads: int | None, input_layout: str, paged: bool
) -> tuple[int, int, int]:
    """Query heads, KV heads and head_dim, inferred from the layout where it tells."""
    check_choice("input_layout", input_layout, LAYOUTS)
    for name, count in (("num_heads", num_heads), ("num_key_value_heads", num_key_value_heads)):
        if count is not None and type(count) is not int:
            raise TopThetaTypeError(name, "an int or None", type(count).__name__)
    shape = query.shape  # each look at it makes a new object
    if len(shape) != (3 if input_layout == "BSH" else 4):
        raise TopThetaValueError("query", f"{input_layout} {QUERY_FORMS[input_layout]}", shape_text(query))
    if shape[0] < 1:
        raise TopThetaValueError("query", "at least one sequence", shape_text(query))
    if shape[2 if input_layout == "BNSD" else 1] != 1:
        raise TopThetaValueError(
            "query",
            f"one token, {input_layout} {QUERY_FORMS[input_layout]}",
            shape_text(query),
            "use prefill_attention for several tokens",
        )
    if input_layout == "BSH":
        if not num_heads:
            raise TopThetaValueError("num_heads", "the number of query heads (BSH does not tell it)", str(num_heads))
        if num_heads < 0 or shape[2] % num_heads:
            wanted = f"a divisor of the hidden size {shape[2]}"
            raise TopThetaValueError("num_heads", wanted, shown(num_heads))
        heads, head_dim = num_heads, shape[2] // num_heads
    else:
        heads, head_dim = shape[1 if input_layout == "BNSD" else 2], shape[3]
        if num_heads is not None and num_heads != heads:
            raise TopThetaValueError("num_heads", f"{heads}, as query says, or None", shown(num_heads))
        if heads < 1:
            raise TopThetaValueError("query", "at least one head", shape_text(query))
    check_head_dim(head_dim)
    return heads, _resolve_kv_heads(key, heads, head_dim, num_key_value_heads, input_layout, paged), head_dim


def _resolve_kv_heads(key: Tensor, heads: int, head_dim: int, given: int | None, input_layout: str, paged: bool) -> int:
    shape = key.shape
    if len(shape) == 4 and (paged or input_layout != "BSH"):
        found = shape[1 if paged or input_layout == "BNSD" else 2]
        if given and given != found:
            raise TopThetaValueError("num_key_value_heads", f"{found}, as key says, or None", shown(given))
    elif len(shape) == 3 and (paged or input_layout == "BSH"):
        found = given or (heads if input_layout == "BSH" else shape[2] // head_dim)
    else:
        forms = "4 or 3" if paged else "3" if input_layout == "BSH" else "4"
        where = "a paged cache" if paged else input_layout
        raise TopThetaValueError("key", f"{forms} dimensions for {where}", shape_text(key))
    if found < 1 or heads % found:
        raise TopThetaValueError(
            "num_key_value_heads", f"a divisor of the {heads} query heads", shown(found),
            "check the KV cache's layout",
        )  # fmt: skip
    return found


def check_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kv_heads: int,
    head_dim: int,
    input_layout: str,
    block_size: int,
    paged: bool,
) -> None:
    """Shapes of K and V against the query and each other."""
    shape = key.shape
    dims = len(shape)
    rows_at = 1 if dims == 3 or (input_layout == "BSND" and not paged) else 2
    batch = shape[0] if paged else query.shape[0]
    rows = block_size if paged else shape[rows_at]
    if dims == 3:
        want: tuple[int, ...] = (batch, rows, kv_heads * head_dim)
        names = " [blocks, block_size, Hkv*D]" if paged else " [B, S, Hkv*D]"
    elif rows_at == 2:
        want = (batch, kv_heads, rows, head_dim)
        names = " [blocks, Hkv, block_size, D]" if paged else " [B, Hkv, S, D]"
    else:
        want, names = (batch, rows, kv_heads, head_dim), " [B, S, Hkv, D]"
    dtypes = (query.dtype,)
    check_tensor("key", key, query, want, dtypes, names)
    check_tensor("value", value, query, shape, dtypes, ", like key")
    if rows < 1 or batch < 1:
        raise TopThetaValueError("key", "room for at least one key", shape_text(key))


def check_paging(
    query: Tensor, block_table: Tensor | None, block_size: int, lengths: Tensor | None, key_start: Tensor | None
) -> None:
    """The arguments that paging needs and excludes."""
    if type(block_size) is not int:
        raise TopThetaTypeError("block_size", "an int", type(block_size).__name__)
    if block_table is None:
        if block_size:
            wanted = f"a table, since block_size={shown(block_size)} says paged"
            raise TopThetaValueError("block_table", wanted, "None")
        return
    check_tensor("block_table", block_table, query, (query.shape[0], None), (torch.int32,), " [B, max_blocks]")
    if block_table.shape[1] < 1:
        raise TopThetaValueError("block_table", "at least one block per sequence", shape_text(block_table))
    if lengths is None:
        raise TopThetaValueError("actual_seq_lengths", "the length of every sequence, since the cache is paged", "None")
    if key_start is not None:
        raise TopThetaNotImplementedError(
            "key_start", "None with a paged cache", "a tensor", "start each sequence at its first block"
        )
    if not 1 <= block_size < 2**31:
        raise TopThetaValueError("block_size", "the rows per block of the paged cache", shown(block_size))


def check_modes(
    placement: str, sdc: str, sdc_gamma: float, discarded_mass: Tensor | None, vmc_argument: str | None
) -> None:
    """Which of placement, SDC and VMC go together; ``vmc_argument`` names the argument that asks for VMC."""
    check_choice("placement", placement, PLACEMENTS)
    check_choice("sdc", sdc, SDC_MODES)
    check_number("sdc_gamma", sdc_gamma, minimum=0)
    if placement == "post_softmax" and sdc != "exact":
        raise TopThetaValueError(
            "sdc", "'exact' with placement='post_softmax', where the denominator is exact by construction", repr(sdc)
        )
    if sdc == "offline" and discarded_mass is None:
        raise TopThetaValueError(
            "discarded_mass", "the calibrated estimate, since sdc='offline'", "None", "or use sdc='exact'"
        )
    if sdc != "offline" and discarded_mass is not None:
        raise TopThetaValueError("discarded_mass", f"None with sdc={sdc!r}", "a tensor", "or use sdc='offline'")
    if sdc == "none" and vmc_argument is not None:
        raise TopThetaValueError(
            vmc_argument, "no VMC with sdc='none', which leaves no mass to give back", "it", "use sdc='exact'"
        )


def check_compensation(
    query: Tensor,
    heads: int,
    kv_heads: int,
    placement: str,
    sdc: str,
    sdc_gamma: float,
    discarded_mass: Tensor | None,
    value_mean: Tensor | None,
    head_dim: int,
) -> None:
    """Modes and tensors of SDC and VMC for a decode step."""
    check_modes(placement, sdc, sdc_gamma, discarded_mass, None if value_mean is None else "value_mean")
    if discarded_mass is not None:
        check_tensor("discarded_mass", discarded_mass, query, (query.shape[0], heads), FLOAT32, " [B, Hq]")
    if value_mean is not None:
        check_value_mean(value_mean, query, kv_heads, head_dim)


def check_value_mean(value_mean: Tensor, query: Tensor, kv_heads: int, head_dim: int) -> None:
    check_tensor("value_mean", value_mean, query, (query.shape[0], kv_heads, head_dim), FLOAT32, " [B, Hkv, D]")


def as_device_tensor(name: str, values: Tensor | Sequence[int] | None, query: Tensor) -> Tensor | None:
    """A tensor as it is; a list of ints copied once to the query's device."""
    if values is None or isinstance(values, Tensor):
        return values
    if not isinstance(values, (list, tuple)) or not all(type(value) is int for value in values):
        raise TopThetaTypeError(name, "an integer tensor or a list of ints", shown(values))
    if any(abs(value) >= 2**63 for value in values):
        raise TopThetaValueError(name, "ints of 64 bits", shown(values))
    return torch.tensor(values, dtype=torch.int64, device=query.device)


def check_lengths(query: Tensor, lengths: Tensor | None, starts: Tensor | None) -> None:
    for name, tensor in (("actual_seq_lengths", lengths), ("key_start", starts)):
        if tensor is not None:
            check_tensor(name, tensor, query, (query.shape[0],), INTEGERS, " [B]")


def check_threshold(threshold: Any, like: Tensor, batch: int, heads: int) -> None:
    per_head = isinstance(threshold, Tensor) and threshold.dim() == 1
    want = (heads,) if per_head else (batch, heads)
    check_tensor("threshold", threshold, like, want, FLOAT32, " [Hq]" if per_head else " [B, Hq]")


def check_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | Sequence[int] | None,
    key_start: Tensor | Sequence[int] | None,
    block_table: Tensor | None,
    block_size: int,
    num_heads: int | None,
    num_key_value_heads: int | None,
    input_layout: str,
    scale_value: float | None,
    path: str,
) -> tuple[Tensor | None, Tensor | None, int, int, int, float]:
    """Check what says where the rows are; return lengths, starts, query and KV heads, head_dim, scale."""
    check_tensor("query", query, query, None, DTYPES)
    check_device(query)
    check_dense("key", key)
    paged = block_table is not None
    lengths = as_device_tensor("actual_seq_lengths", actual_seq_lengths, query)
    starts = as_device_tensor("key_start", key_start, query)
    heads, kv_heads, head_dim = resolve_heads(query, key, num_heads, num_key_value_heads, input_layout, paged)
    check_paging(query, block_table, block_size, lengths, starts)
    check_cache(query, key, value, kv_heads, head_dim, input_layout, block_size, paged)
    check_threshold(threshold, query, query.shape[0], heads)
    if lengths is not None or starts is not None:
        check_lengths(query, lengths, starts)
    check_choice("_path", path, PATHS)
    if scale_value is None:
        return lengths, starts, heads, kv_heads, head_dim, head_dim**-0.5
    check_number("scale_value", scale_value)
    return lengths, starts, heads, kv_heads, head_dim, float(scale_value)


def check_head_dim(head_dim: int) -> None:
    if not HEAD_DIMS[0] <= head_dim <= HEAD_DIMS[1]:
        raise TopThetaValueError("query", f"head_dim from {HEAD_DIMS[0]} to {HEAD_DIMS[1]}", str(head_dim))


def check_device(query: Tensor, devices: tuple[str, ...] = DEVICES) -> None:
    """The device is one of ``devices`` or an NPU, for which the backend decides what runs."""
    if query.is_cpu and devices[0] == "cpu":  # the name of a device takes longer to make
        return
    kind = query.device.type
    if kind not in devices and kind != NPU:
        wanted = " or ".join((*DEVICES[:2], NPU))
        raise TopThetaNotImplementedError(
            "query", f"a tensor on {wanted}", str(query.device), "move it with query.cpu()"
        )


def check_kernel_limits(query: Tensor, key: Tensor, value: Tensor, head_dim: int, block_size: int) -> None:
    """What the fallback takes and the NPU kernel does not: float32, other sizes, caches that it cannot step through."""
    check_tensor("query", query, query, None, KERNEL_DTYPES)
    if head_dim % KERNEL_STEP:
        raise TopThetaNotImplementedError(
            "query", f"head_dim a multiple of {KERNEL_STEP} on an NPU", str(head_dim),
            "pad query, key and value with zeros and keep scale_value",
        )  # fmt: skip
    if block_size % KERNEL_STEP or block_size > KERNEL_PAGE_ROWS:
        raise TopThetaNotImplementedError(
            "block_size", f"a multiple of {KERNEL_STEP} up to {KERNEL_PAGE_ROWS} on an NPU", str(block_size),
            "use a cache with block_size=128, for example",
        )  # fmt: skip
    _check_kernel_strides("key", key)
    _check_kernel_strides("value", value)


def _check_kernel_strides(name: str, cache: Tensor) -> None:
    *outer, last = cache.stride()
    remedy = f"pass {name}.contiguous()"
    if last != 1:
        raise TopThetaValueError(name, "a last stride of 1", str([*outer, last]), remedy)
    if any(stride % KERNEL_STEP and size > 1 for size, stride in zip(cache.shape, outer, strict=False)):
        wanted = f"strides that are multiples of {KERNEL_STEP} elements"
        raise TopThetaValueError(name, wanted, str([*outer, last]), remedy)
