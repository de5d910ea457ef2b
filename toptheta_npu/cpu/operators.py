"""The three operators over the native library: what Python tensors say becomes one packed struct."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import ARGUMENTS, RUN_IN_PARALLEL, function
from .threads import thread_count

_PLACEMENTS = {"pre_softmax": 0, "post_softmax": 1}
_SDC = {"none": 0, "exact": 1, "exp_threshold": 2, "offline": 3}
_PATHS = {"auto": 0, "gather": 1, "dense": 2}
_OUTPUT, _WITH_STATISTICS, _PARTIAL = range(3)
_DONE, _BAD_VALUES, _OUT_OF_MEMORY = range(3)


class BadValues(Exception):
    """A value in a tensor cannot be; whoever called finds out which."""


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
    out = query.new_empty(query.shape)
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
    out, lse = query.new_empty(query.shape), threshold.new_empty((batch, num_heads))
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
    out, kept = threshold.new_empty(query.shape), threshold.new_empty(rows, dtype=torch.int32)
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
    batch = query.shape[0]
    head_dim = query.shape[2] // heads if layout == "BSH" else query.shape[3]
    query_view = _query_view(query, layout, head_dim)
    paged = block_table is not None
    key_view, value_view = (_cache_view(cache, layout, head_dim, paged) for cache in (key, value))
    rows = key.shape[1] if key.dim() == 3 or (layout == "BSND" and not paged) else key.shape[2]
    # what is small is made contiguous; these names keep the copies alive
    threshold, held = (
        threshold.contiguous(),
        [_Held(t) for t in (lengths, starts, block_table, lse, discarded_mass, value_mean)],
    )
    length, start, table, row_lse, mass, mean = held
    blocks_per_sequence = block_table.shape[1] if block_table is not None else 0
    packed = ARGUMENTS.pack(
        batch, heads, kv_heads, head_dim, rows * (blocks_per_sequence if paged else 1),
        query.data_ptr(), *query_view, key.data_ptr(), *key_view, value.data_ptr(), *value_view,
        threshold.data_ptr(), heads if threshold.dim() == 2 else 0,
        length.address, length.is_64_bits, start.address, start.is_64_bits,
        table.address, blocks_per_sequence, rows, key.shape[0],
        row_lse.address, mass.address, mean.address,
        head_dim**-0.5 if scale is None else scale, sdc_gamma,
        result, _PLACEMENTS[placement], _SDC[sdc], _PATHS[path], *outputs, thread_count(), RUN_IN_PARALLEL,
    )  # fmt: skip
    status = function(query.dtype)(packed)
    if status == _BAD_VALUES:
        raise BadValues
    if status == _OUT_OF_MEMORY:
        raise MemoryError("the native CPU backend found no memory for its intermediate results")


class _Held:
    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor = None if tensor is None else tensor.contiguous()
        self.address = 0 if self.tensor is None else self.tensor.data_ptr()
        self.is_64_bits = int(tensor is not None and tensor.dtype == torch.int64)


def _query_view(query: Tensor, layout: str, head_dim: int) -> tuple[int, int, int, int]:
    strides = query.stride()
    if layout == "BSH":
        return strides[0], head_dim * strides[2], 0, strides[2]
    return strides[0], strides[1 if layout == "BNSD" else 2], 0, strides[3]


def _cache_view(cache: Tensor, layout: str, head_dim: int, paged: bool) -> tuple[int, int, int, int]:
    """Strides of sequence or block, head, row and element."""
    strides = cache.stride()
    if len(strides) == 3:
        return strides[0], head_dim * strides[2], strides[1], strides[2]
    if layout == "BSND" and not paged:
        return strides[0], strides[2], strides[1], strides[3]
    return strides  # type: ignore[return-value]
