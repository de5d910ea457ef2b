"""The three operators over the native library: what Python tensors say becomes one packed struct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._value_checks import check_step_values
from ..fallback.antiquant import PER_CHANNEL, per_channel
from ..fallback.arguments import FLOAT_TENSORS, Arguments
from .library import ARGUMENTS, RUN_IN_PARALLEL, function
from .threads import thread_count

_PLACEMENTS = {"pre_softmax": 0, "post_softmax": 1}
_SDC = {"none": 0, "exact": 1, "exp_threshold": 2, "offline": 3}
_PATHS = {"auto": 0, "gather": 1, "dense": 2}
_SCALE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_NO_SCALES = (0, 0, 0, 0, 0, 0)
_OUTPUT, WITH_STATISTICS, _PARTIAL = range(3)
_DONE, _BAD_VALUES, _OUT_OF_MEMORY = range(3)


def load(dtype: torch.dtype) -> None:
    """Load the library for tensors of a dtype, and build it if need be.

    Raises:
        TopThetaBackendError: it cannot be had.
    """
    function(dtype)


def incremental_attention(arguments: Arguments) -> Tensor:
    """Run one decode step; arguments and result as `toptheta_npu.fallback.incremental_attention`."""
    out = _like(arguments.query)
    _call(arguments, _OUTPUT, (out.data_ptr(), 0, 0, 0, 0, 0, 0))
    return out


def incremental_attention_with_stats(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run `incremental_attention` and return also lse [B, Hq], kept [B, Hq] int32, value_rows [B, Hkv] int32."""
    query, threshold = arguments.query, arguments.threshold
    batch, heads = query.shape[0], arguments.num_heads
    # not torch.empty, whose dtype and device are what the process has set
    out, lse = _like(query), threshold.new_empty((batch, heads))
    kept = threshold.new_empty((batch, heads), dtype=torch.int32)
    value_rows = threshold.new_empty((batch, arguments.num_key_value_heads), dtype=torch.int32)
    outputs = (out.data_ptr(), lse.data_ptr(), kept.data_ptr(), value_rows.data_ptr(), 0, 0, 0)
    _call(arguments, WITH_STATISTICS, outputs)
    return out, lse, kept, value_rows


def incremental_attention_partial(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run a decode step over a part of the keys. Return (out = N/R float32, m, R, E [B, Hq], kept int32)."""
    query, threshold = arguments.query, arguments.threshold
    rows = (query.shape[0], arguments.num_heads)
    out, kept = _like(query, torch.float32), threshold.new_empty(rows, dtype=torch.int32)
    maximum, kept_mass, discarded_mass = (threshold.new_empty(rows) for _ in range(3))
    outputs = (
        out.data_ptr(), 0, kept.data_ptr(), 0, maximum.data_ptr(), kept_mass.data_ptr(), discarded_mass.data_ptr()
    )  # fmt: skip
    _call(arguments, _PARTIAL, outputs)
    return out, maximum, kept_mass, discarded_mass, kept


def _call(a: Arguments, result: int, outputs: tuple[int, ...]) -> None:
    heads, kv_heads, scale, query, key, value, threshold, lengths, starts, block_table = a[:10]
    layout, query_shape, key_shape = a.input_layout, query.shape, key.shape
    head_dim = query_shape[2] // heads if layout == "BSH" else query_shape[3]
    paged = block_table is not None
    capacity = rows = key_shape[1 if len(key_shape) == 3 or (layout == "BSND" and not paged) else 2]
    blocks_per_sequence = 0
    if block_table is not None:
        block_table = block_table.contiguous()
        blocks_per_sequence = block_table.shape[1]
        capacity = rows * blocks_per_sequence
    # what is small is made contiguous; each name keeps its copy alive until the call is over
    threshold = threshold.contiguous()
    lengths = lengths if lengths is None else lengths.contiguous()
    starts = starts if starts is None else starts.contiguous()
    floats: Any = a[FLOAT_TENSORS]
    copies, addresses = [], []
    for tensor in floats:
        if tensor is None:
            addresses.append(0)
        else:
            copies.append(tensor.contiguous())
            addresses.append(copies[-1].data_ptr())
    caches = (
        key.data_ptr(), *_strides(key, layout, head_dim, paged), value.data_ptr(),
        *_strides(value, layout, head_dim, paged),
    )  # fmt: skip
    integers = (
        _address(lengths), lengths is not None and lengths.dtype == torch.int64,
        _address(starts), starts is not None and starts.dtype == torch.int64,
        _address(block_table), blocks_per_sequence, rows, key_shape[0],
    )  # fmt: skip
    scales = _scales(a, kv_heads, head_dim, copies) if key.dtype is torch.int8 else _NO_SCALES * 2
    packed = pack(
        (query_shape[0], heads, kv_heads, head_dim, capacity),
        (query.data_ptr(), *_strides(query, layout, head_dim, False)), caches,
        (threshold.data_ptr(), heads if threshold.dim() == 2 else 0), integers, addresses,
        (scale, a.sdc_gamma), choices(result, a), outputs, scales,
    )  # fmt: skip
    if not is_done(function(query.dtype)(packed)):
        check_step_values(a)
        raise AssertionError("the native kernel refused values that pass the checks in Python")


def pack(
    sizes: Sequence[int], query: Sequence[int], caches: Sequence[int], threshold: Sequence[int],
    integers: Sequence[int], floats: Sequence[int], numbers: Sequence[float], choices: Sequence[int],
    outputs: Sequence[int], scales: Sequence[int] = _NO_SCALES * 2,
) -> bytes:  # fmt: skip
    """Pack the fields of struct Arguments in source/arguments.h, in its order."""
    return ARGUMENTS.pack(
        *sizes, *query, *caches, *threshold, *integers, *scales, *floats, *numbers, *choices, *outputs,
        thread_count(), RUN_IN_PARALLEL,
    )  # fmt: skip


def choices(result: int, a: Arguments) -> tuple[int, int, int, int]:
    """Number what is to be written, and how rows select and compensate."""
    return result, _PLACEMENTS[a.placement], _SDC[a.sdc], _PATHS[a.path]


def is_done(status: int) -> bool:
    """Tell whether a call found values that it can work with; where it did not, nothing is written.

    Raises:
        MemoryError: there was no memory for intermediate results.
    """
    if status == _OUT_OF_MEMORY:
        raise MemoryError("the native CPU backend found no memory for its intermediate results")
    return status == _DONE


def _scales(a: Arguments, kv_heads: int, head_dim: int, copies: list[Tensor]) -> tuple[int, ...]:
    """Describe the scales of int8 K and V. Put into ``copies`` what has to stay alive until the call is over."""
    fields: list[int] = []
    for scale, mode in (
        (a.key_antiquant_scale, a.key_antiquant_mode), (a.value_antiquant_scale, a.value_antiquant_mode),
    ):  # fmt: skip
        if scale is None:
            fields += _NO_SCALES
        elif mode == PER_CHANNEL:
            copies.append(per_channel(scale, kv_heads, head_dim).float().contiguous())
            fields += (copies[-1].data_ptr(), 0, head_dim, 0, 1, 0)
        else:
            fields += (scale.data_ptr(), *scale.stride(), 0, _SCALE_TYPES[scale.dtype])
    return tuple(fields)


def _like(query: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    # three times as fast as torch.empty with its shape
    return torch.empty_like(query, dtype=dtype, memory_format=torch.contiguous_format)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _strides(tensor: Tensor, layout: str, head_dim: int, paged: bool) -> tuple[int, ...]:
    """Return the strides of sequence (or block), head, row and element, whatever the layout."""
    strides = tensor.stride()
    if len(strides) == 3:
        return strides[0], head_dim * strides[2], strides[1], strides[2]
    if layout == "BSND" and not paged:
        return strides[0], strides[2], strides[1], strides[3]
    return strides
