"""Prompt attention under the rule of the decode step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._checks import (
    DEVICES,
    DTYPES,
    FLOAT32,
    check_device,
    check_head_dim,
    check_modes,
    check_number,
    check_tensor,
    shape_text,
)
from .._derivatives import refuse_derivatives, refuse_vmap, under_transforms
from .._value_checks import (
    check_cache_values,
    check_float_values,
    check_scale_values,
    check_threshold_values,
    host_can_read,
)
from ..errors import TopThetaTypeError, TopThetaValueError
from ..fallback import Arguments, prefill
from ..fallback.layout import KeyValueCache
from .cache_checks import check_antiquant, check_cache
from .checks import as_device_tensor, check_lengths


def prefill_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold_per_row: Tensor,
    *,
    actual_seq_lengths: Tensor | Sequence[int] | None = None,
    key_start: Tensor | Sequence[int] | None = None,
    scale_value: float | None = None,
    key_antiquant_scale: Tensor | None = None,
    value_antiquant_scale: Tensor | None = None,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    vmc: bool = False,
) -> Tensor:
    """Compute causal Top-Theta attention for a prompt, or for a chunk whose past is in the cache, row by row.

    Row i of Q gives the same result as the decode step of its token. It sees the keys up to position S - Q + i and
    has a threshold of its own.

    Args:
        query: [B, Hq, Q, D], float16, bfloat16 or float32.
        key, value: [B, Hkv, S, D] with S >= Q, typed like query or int8. The last Q keys are the query's own tokens.
        threshold_per_row: float32 [Hq, Q] or [B, Hq, Q], the threshold of each row.
        actual_seq_lengths: int [B], valid keys per sequence (right padding). A padding row gives 0.
        key_start: int [B], index of the first valid key (left padding).
        scale_value, key_antiquant_scale, value_antiquant_scale, key_antiquant_mode, value_antiquant_mode, placement,
            sdc, sdc_gamma: as in `incremental_attention`.
        discarded_mass: float32 [B, Hq, Q], for sdc="offline".
        learnable_sink: float32 [Hq], as in `incremental_attention`; every row uses the same.
        vmc: whether to compensate with the mean of the V rows that each row sees.

    Returns:
        A new tensor shaped and typed like query.

    Raises:
        TopThetaValueError, TopThetaTypeError, TopThetaNotImplementedError: as `incremental_attention`.

    Example:
        >>> import torch, toptheta_npu
        >>> q, k, v = torch.randn(1, 4, 9, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16)
        >>> toptheta_npu.prefill_attention(q, k, v, torch.zeros(4, 9)).shape
        torch.Size([1, 4, 9, 16])
    """
    if under_transforms():
        given = {
            "query": query, "key": key, "value": value, "threshold_per_row": threshold_per_row,
            "actual_seq_lengths": actual_seq_lengths, "key_start": key_start,
            "key_antiquant_scale": key_antiquant_scale, "value_antiquant_scale": value_antiquant_scale,
            "discarded_mass": discarded_mass, "learnable_sink": learnable_sink,
        }  # fmt: skip
        refuse_derivatives(given.items())
        refuse_vmap(given.items(), "pass all sequences in one call: the first axis is theirs")
    check_tensor("query", query, query, (None, None, None, None), DTYPES, " [B, Hq, Q, D]")
    check_device(query, DEVICES[:2])
    if min(query.shape) < 1:
        raise TopThetaValueError("query", "at least one sequence, head and row", shape_text(query))
    check_head_dim(query.shape[3])
    lengths = as_device_tensor("actual_seq_lengths", actual_seq_lengths, query)
    starts = as_device_tensor("key_start", key_start, query)
    batch, heads, rows, head_dim = query.shape
    check_tensor("key", key, query, (batch, None, None, head_dim), (query.dtype, torch.int8), " [B, Hkv, S, D]")
    kv_heads = key.shape[1]
    if kv_heads < 1 or heads % kv_heads:
        raise TopThetaValueError("key", f"a number of KV heads that divides the {heads} query heads", str(kv_heads))
    if key.shape[2] < rows:
        raise TopThetaValueError("key", f"at least the query's {rows} keys", str(key.shape[2]))
    cache = Arguments(
        heads, kv_heads, 1.0, query, key, value, threshold_per_row,
        key_antiquant_scale=key_antiquant_scale, value_antiquant_scale=value_antiquant_scale,
        key_antiquant_mode=key_antiquant_mode, value_antiquant_mode=value_antiquant_mode,
    )  # fmt: skip
    check_cache(cache, kv_heads, head_dim)
    check_antiquant(cache, kv_heads, head_dim)
    want = (
        (heads, rows)
        if isinstance(threshold_per_row, Tensor) and threshold_per_row.dim() == 2
        else (batch, heads, rows)
    )
    check_tensor("threshold_per_row", threshold_per_row, query, want, FLOAT32, " [Hq, Q] or [B, Hq, Q]")
    check_lengths(query, batch, lengths, starts)
    if discarded_mass is not None:
        check_tensor("discarded_mass", discarded_mass, query, (batch, heads, rows), FLOAT32, " [B, Hq, Q]")
    if learnable_sink is not None:
        check_tensor("learnable_sink", learnable_sink, query, (heads,), FLOAT32, " [Hq]")
    if type(vmc) is not bool:
        raise TopThetaTypeError("vmc", "True or False", type(vmc).__name__)
    check_modes(placement, sdc, sdc_gamma, discarded_mass, "vmc" if vmc else None)
    if scale_value is not None:
        check_number("scale_value", scale_value)
    if host_can_read(query):
        check_threshold_values("threshold_per_row", threshold_per_row, placement)
        check_float_values({"discarded_mass": discarded_mass, "learnable_sink": learnable_sink})
        check_cache_values(lengths, starts, key.shape[2])
        check_scale_values(cache._replace(actual_seq_lengths=lengths, key_start=starts))
    keys, values = (rows.dequantised() for rows in KeyValueCache.of(cache))
    return prefill.prefill_attention(
        query, keys, values, threshold_per_row, actual_seq_lengths=lengths, key_start=starts,
        scale_value=None if scale_value is None else float(scale_value), placement=placement, sdc=sdc,
        sdc_gamma=float(sdc_gamma),
        discarded_mass=discarded_mass, learnable_sink=learnable_sink, vmc=vmc,
    )  # fmt: skip
