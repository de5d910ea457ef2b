"""The three operators over the native library: what Python tensors say becomes one packed struct."""

from __future__ import annotations

import torch
from torch import Tensor

from .._value_checks import check_step_values
from .library import ARGUMENTS, RUN_IN_PARALLEL, function
from .threads import thread_count

_PLACEMENTS = {"pre_softmax": 0, "post_softmax": 1}
_SDC = {"none": 0, "exact": 1, "exp_threshold": 2, "offline": 3}
_PATHS = {"auto": 0, "gather": 1, "dense": 2}
_OUTPUT, _WITH_STATISTICS, _PARTIAL = range(3)
_DONE, _BAD_VALUES, _OUT_OF_MEMORY = range(3)


def load(dtype: torch.dtype) -> None:
    """Load the library for tensors of a dtype, and build it if need be.

    Raises:
        TopThetaBackendError: it cannot be had.
    """
    function(dtype)


def incremental_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    block_table: Tensor | None = None,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    path: str = "auto",
) -> Tensor:
    """One decode step; arguments and result as `toptheta_npu.fallback.incremental_attention`."""
    out = _like(query)
    _call(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, None, discarded_mass, value_mean,
        num_heads, num_key_value_heads, input_layout, scale_value, placement, sdc, sdc_gamma, path,
        _OUTPUT, (out.data_ptr(), 0, 0, 0, 0, 0, 0),
    )  # fmt: skip
    return out


def incremental_attention_with_stats(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    block_table: Tensor | None = None,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    path: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `incremental_attention`, and (lse [B, Hq], kept [B, Hq] int32, value_rows [B, Hkv] int32)."""
    batch = query.shape[0]
    # not torch.empty, whose dtype and device are what the process has set
    out, lse = _like(query), threshold.new_empty((batch, num_heads))
    kept = threshold.new_empty((batch, num_heads), dtype=torch.int32)
    value_rows = threshold.new_empty((batch, num_key_value_heads), dtype=torch.int32)
    _call(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, None, discarded_mass, value_mean,
        num_heads, num_key_value_heads, input_layout, scale_value, placement, sdc, sdc_gamma, path,
        _WITH_STATISTICS, (out.data_ptr(), lse.data_ptr(), kept.data_ptr(), value_rows.data_ptr(), 0, 0, 0),
    )  # fmt: skip
    return out, lse, kept, value_rows


def incremental_attention_partial(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    block_table: Tensor | None = None,
    lse: Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    path: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A decode step over a part of the keys: (out = N/R float32, m, R, E [B, Hq], kept int32)."""
    rows = (query.shape[0], num_heads)
    out, kept = _like(query, torch.float32), threshold.new_empty(rows, dtype=torch.int32)
    maximum, kept_mass, discarded_mass = (threshold.new_empty(rows) for _ in range(3))
    outputs = (
        out.data_ptr(), 0, kept.data_ptr(), 0, maximum.data_ptr(), kept_mass.data_ptr(), discarded_mass.data_ptr()
    )  # fmt: skip
    _call(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, lse, None, None,
        num_heads, num_key_value_heads, input_layout, scale_value, placement, "exact", 0.0, path, _PARTIAL, outputs,
    )  # fmt: skip
    return out, maximum, kept_mass, discarded_mass, kept


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    lengths: Tensor | None,
    starts: Tensor | None,
    block_table: Tensor | None,
    lse: Tensor | None,
    discarded_mass: Tensor | None,
    value_mean: Tensor | None,
    heads: int,
    kv_heads: int,
    layout: str,
    scale: float | None,
    placement: str,
    sdc: str,
    sdc_gamma: float,
    path: str,
    result: int,
    outputs: tuple[int, ...],
) -> None:
    query_shape, key_shape = query.shape, key.shape
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
    lengths, starts, lse, discarded_mass, value_mean = (
        tensor if tensor is None else tensor.contiguous()
        for tensor in (lengths, starts, lse, discarded_mass, value_mean)
    )
    status = function(query.dtype)(
        ARGUMENTS.pack(
            query_shape[0], heads, kv_heads, head_dim, capacity,
            query.data_ptr(), *_strides(query, layout, head_dim, False),
            key.data_ptr(), *_strides(key, layout, head_dim, paged),
            value.data_ptr(), *_strides(value, layout, head_dim, paged),
            threshold.data_ptr(), heads if threshold.dim() == 2 else 0,
            _address(lengths), lengths is not None and lengths.dtype == torch.int64,
            _address(starts), starts is not None and starts.dtype == torch.int64,
            _address(block_table), blocks_per_sequence, rows, key_shape[0],
            _address(lse), _address(discarded_mass), _address(value_mean),
            head_dim**-0.5 if scale is None else scale, sdc_gamma,
            result, _PLACEMENTS[placement], _SDC[sdc], _PATHS[path], *outputs, thread_count(), RUN_IN_PARALLEL,
        )
    )  # fmt: skip
    if status == _BAD_VALUES:
        check_step_values(key, threshold, lengths, starts, block_table, discarded_mass, layout, placement)
        raise AssertionError("the native kernel refused values that pass the checks in Python")
    if status == _OUT_OF_MEMORY:
        raise MemoryError("the native CPU backend found no memory for its intermediate results")


def _like(query: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    # three times as fast as torch.empty with its shape
    return torch.empty_like(query, dtype=dtype, memory_format=torch.contiguous_format)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _strides(tensor: Tensor, layout: str, head_dim: int, paged: bool) -> tuple[int, ...]:
    """Strides of sequence (or block), head, row and element, whatever the layout."""
    strides = tensor.stride()
    if len(strides) == 3:
        return strides[0], head_dim * strides[2], strides[1], strides[2]
    if layout == "BSND" and not paged:
        return strides[0], strides[2], strides[1], strides[3]
    return strides
