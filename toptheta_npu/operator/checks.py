"""Checks of the arguments of a decode step, and of those that its companions share with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from .._checks import (
    DTYPES,
    FLOAT32,
    INTEGERS,
    KERNEL_DTYPES,
    KERNEL_PAGE_ROWS,
    KERNEL_STEP,
    PLACEMENTS,
    check_choice,
    check_dense,
    check_device,
    check_head_dim,
    check_modes,
    check_number,
    check_tensor,
    shape_text,
)
from ..errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown
from ..fallback.arguments import FLOAT_TENSORS, TABLE, TENSORS, Arguments
from .cache_checks import check_antiquant, check_cache, check_paging

QUERY_FORMS = {"BNSD": "[B, Hq, 1, D]", "BSND": "[B, 1, Hq, D]", "BSH": "[B, 1, Hq*D]"}
LAYOUTS = tuple(QUERY_FORMS)
PATHS = ("auto", "gather", "dense")
_SHAPES: dict[str, Callable[[int, int, int, int], tuple[int, ...]]] = {
    "[Hq]": lambda batch, heads, kv_heads, head_dim: (heads,),
    "[B, Hq]": lambda batch, heads, kv_heads, head_dim: (batch, heads),
    "[B, Hkv, D]": lambda batch, heads, kv_heads, head_dim: (batch, kv_heads, head_dim),
}
#: Of each of `FLOAT_TENSORS` its name, shape, dtypes, and the shape in words.
_FLOAT_TENSORS = [
    (name, _SHAPES[TABLE[name].about.shape], TABLE[name].about.dtypes, f" {TABLE[name].about.shape}")
    for name in Arguments._fields[FLOAT_TENSORS]
]
_NO_MODE = Arguments._field_defaults["key_antiquant_mode"]
_NO_MASK = "give valid keys by actual_seq_lengths, key_start or block_table"
_NO_QUANTISATION = "queries and outputs are not quantised; pass float16 or bfloat16 tensors"
_BY_CACHE = "give the scales of int8 caches as key_antiquant_scale and value_antiquant_scale"
_SYMMETRIC = "int8 caches are symmetric; quantise without offsets"
#: Arguments of torch_npu.npu_incre_flash_attention that have no meaning here, and the way round.
UNSUPPORTED = {
    "padding_mask": _NO_MASK,
    "atten_mask": _NO_MASK,
    "pse_shift": "positional biases are not supported",
    "kv_padding_size": "use key_start, the index of the first valid key",
    "inner_precise": "leave it out; scores and sums are always float32",
    **dict.fromkeys(("antiquant_scale", "antiquant_mode", "dequant_scale_key", "dequant_scale_value"), _BY_CACHE),
    **dict.fromkeys(("antiquant_offset", "key_antiquant_offset", "value_antiquant_offset"), _SYMMETRIC),
    **dict.fromkeys(
        ("dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2"), _NO_QUANTISATION
    ),
}  # fmt: skip


def refuse_unknown(function: str, unsupported: Mapping[str, object]) -> NoReturn:
    """Raise for keyword arguments that ``function`` does not take."""
    name = next(iter(unsupported))
    if name in UNSUPPORTED:
        raise TopThetaNotImplementedError(name, "the argument left out", "a value", UNSUPPORTED[name])
    raise TopThetaTypeError(name, "a known argument", "an unknown name", f"see help({function})")


def resolve_heads(
    query: Tensor, key: Tensor, num_heads: int | None, num_key_value_heads: int | None, input_layout: str, paged: bool
) -> tuple[int, int, int, int]:
    """Find sequences, query heads, KV heads and head_dim; infer them from the layout where it tells."""
    if type(input_layout) is not str or input_layout not in QUERY_FORMS:
        check_choice("input_layout", input_layout, LAYOUTS)
    if num_heads is not None:
        _check_count("num_heads", num_heads)
    if num_key_value_heads is not None:
        _check_count("num_key_value_heads", num_key_value_heads)
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
    kv_heads = _resolve_kv_heads(key, heads, head_dim, num_key_value_heads, input_layout, paged)
    return shape[0], heads, kv_heads, head_dim


def _check_count(name: str, count: Any) -> None:
    if type(count) is not int:
        raise TopThetaTypeError(name, "an int or None", type(count).__name__)


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


def check_whole_row(a: Arguments) -> None:
    """Check modes and tensors of SDC and VMC for a decode step over whole rows."""
    vmc_argument = None if a.value_mean is None else "value_mean"
    check_modes(a.placement, a.sdc, a.sdc_gamma, a.discarded_mass, vmc_argument)


def check_part(a: Arguments) -> None:
    """Check placement and LSE for a decode step over a part of rows."""
    check_choice("placement", a.placement, PLACEMENTS)
    if (a.lse is None) == (a.placement == "post_softmax"):
        wanted = "the whole row's LSE [B, Hq]" if a.lse is None else "None"
        got = "None" if a.lse is None else "a tensor"
        raise TopThetaValueError("lse", f"{wanted} with placement={a.placement!r}", got)


def check_float_tensors(
    given: Iterable[Tensor | None], like: Tensor, batch: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    """Check tensors of numbers per row or head against the table's shapes and dtypes; ``given`` begins as it does."""
    for tensor, (name, shape, dtypes, words) in zip(given, _FLOAT_TENSORS, strict=False):
        if tensor is not None:
            check_tensor(name, tensor, like, shape(batch, heads, kv_heads, head_dim), dtypes, words)


def as_device_tensor(name: str, values: Tensor | Sequence[int] | None, query: Tensor) -> Tensor | None:
    """Return a tensor as it is; copy a list of ints once to the query's device."""
    if values is None or isinstance(values, Tensor):
        return values
    if not isinstance(values, (list, tuple)) or not all(type(value) is int for value in values):
        raise TopThetaTypeError(name, "an integer tensor or a list of ints", shown(values))
    if any(abs(value) >= 2**63 for value in values):
        raise TopThetaValueError(name, "ints of 64 bits", shown(values))
    return torch.tensor(values, dtype=torch.int64, device=query.device)


def check_lengths(query: Tensor, batch: int, lengths: Tensor | None, starts: Tensor | None) -> None:
    if lengths is not None:
        check_tensor("actual_seq_lengths", lengths, query, (batch,), INTEGERS, " [B]")
    if starts is not None:
        check_tensor("key_start", starts, query, (batch,), INTEGERS, " [B]")


def check_threshold(threshold: Any, like: Tensor, batch: int, heads: int) -> None:
    per_head = isinstance(threshold, Tensor) and threshold.dim() == 1
    want = (heads,) if per_head else (batch, heads)
    check_tensor("threshold", threshold, like, want, FLOAT32, " [Hq]" if per_head else " [B, Hq]")


def check_arguments(given: Arguments) -> Arguments:
    """Check that the arguments for where the rows are fit together, as do the tensors of numbers per row or head.

    Args:
        given: as a public function was called: lengths and starts may be lists, head counts and the scale None.

    Returns:
        The same with tensors, counts and a number in their places.
    """
    tensors, heads, kv_heads, scale = resolve_arguments(given)
    return Arguments(heads, kv_heads, scale, *tensors, *given[TENSORS.stop :])


def resolve_arguments(given: Arguments) -> tuple[tuple[Any, ...], int, int, float]:
    """Check as `check_arguments` does, for callers with no time to lose. Return all tensors, and what is resolved."""
    num_heads, num_key_value_heads, scale, query, key, value, threshold, lengths, starts, block_table = given[:10]
    input_layout, path, block_size = given.input_layout, given.path, given.block_size
    # what follows is of every call, so it calls nothing where there is nothing to check
    check_tensor("query", query, query, None, DTYPES)
    if not query.is_cpu:
        check_device(query)
    check_dense("key", key)
    paged = block_table is not None
    tensors: Any = given[TENSORS]
    if not ((lengths is None or isinstance(lengths, Tensor)) and (starts is None or isinstance(starts, Tensor))):
        lengths = as_device_tensor("actual_seq_lengths", lengths, query)
        starts = as_device_tensor("key_start", starts, query)
        tensors = (query, key, value, threshold, lengths, starts, *tensors[6:])
    batch, heads, kv_heads, head_dim = resolve_heads(query, key, num_heads, num_key_value_heads, input_layout, paged)
    if paged or type(block_size) is not int or block_size:
        check_paging(query, block_table, block_size, lengths, starts)
    check_cache(query, key, value, kv_heads, head_dim, input_layout, block_size, paged)
    scaled = given.key_antiquant_scale is not None or given.value_antiquant_scale is not None
    plain = given.key_antiquant_mode is _NO_MODE and given.value_antiquant_mode is _NO_MODE
    if scaled or not plain or key.dtype is torch.int8:
        check_antiquant(given, query, kv_heads, head_dim)
    check_threshold(threshold, query, batch, heads)
    if lengths is not None or starts is not None:
        check_lengths(query, batch, lengths, starts)
    floats: Any = given[FLOAT_TENSORS]
    for tensor in floats:
        if tensor is not None:
            check_float_tensors(floats, query, batch, heads, kv_heads, head_dim)
            break
    if type(path) is not str or path != "auto":
        check_choice("_path", path, PATHS)
    if scale is None:
        return tensors, heads, kv_heads, head_dim**-0.5
    check_number("scale_value", scale)
    return tensors, heads, kv_heads, float(scale)


def check_kernel_limits(a: Arguments) -> None:
    """Refuse what only the fallback takes, not the NPU kernel: float32, int8, other sizes, caches with other steps."""
    check_tensor("query", a.query, a.query, None, KERNEL_DTYPES)
    for name, cache in (("key", a.key), ("value", a.value)):
        if cache.dtype is not a.query.dtype:
            raise TopThetaNotImplementedError(
                name, f"{a.query.dtype}, like query, on an NPU".removeprefix("torch."),
                str(cache.dtype).removeprefix("torch."),
                "int8 caches run on a CPU and on CUDA, or by use_backend('fallback', device='npu')",
            )  # fmt: skip
    if a.head_dim % KERNEL_STEP:
        raise TopThetaNotImplementedError(
            "query", f"head_dim a multiple of {KERNEL_STEP} on an NPU", str(a.head_dim),
            "pad query, key and value with zeros and keep scale_value",
        )  # fmt: skip
    if a.block_size % KERNEL_STEP or a.block_size > KERNEL_PAGE_ROWS:
        raise TopThetaNotImplementedError(
            "block_size", f"a multiple of {KERNEL_STEP} up to {KERNEL_PAGE_ROWS} on an NPU", str(a.block_size),
            "use a cache with block_size=128, for example",
        )  # fmt: skip
    _check_kernel_strides("key", a.key)
    _check_kernel_strides("value", a.value)


def _check_kernel_strides(name: str, cache: Tensor) -> None:
    *outer, last = cache.stride()
    remedy = f"pass {name}.contiguous()"
    if last != 1:
        raise TopThetaValueError(name, "a last stride of 1", str([*outer, last]), remedy)
    if any(stride % KERNEL_STEP and size > 1 for size, stride in zip(cache.shape, outer, strict=False)):
        wanted = f"strides that are multiples of {KERNEL_STEP} elements"
        raise TopThetaValueError(name, wanted, str([*outer, last]), remedy)
