"""The three operators over the Triton kernels; arguments and results as in the fallback."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..fallback.arguments import Arguments
from ..fallback.layout import query_heads
from . import kernel, kernel_sampled
from .plan import SDC, VALUE_KEYS, Step, make_step, power_of_2, sample_tiles

_POST = 1
_NO_STRIDES = (0, 0, 0, 0)


class _Splits(NamedTuple):
    """The results of a step's programs for each split and row."""

    sums: Tensor
    maximum: Tensor
    kept_mass: Tensor
    discarded_mass: Tensor
    kept: Tensor
    largest_at: Tensor
    value_rows: Tensor | None


def incremental_attention(arguments: Arguments) -> Tensor:
    """Run one decode step; arguments and result as `toptheta_npu.fallback.incremental_attention`."""
    step = make_step(arguments)
    out = _like(arguments.query)
    _join(step, _attend(step, count=False), out)
    return out


def incremental_attention_with_stats(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run `incremental_attention` and return also lse, kept int32 [B, Hq] or [B, Hq, Sq], value_rows [B, Hkv] int32."""
    step = make_step(arguments)
    out, lse = _like(arguments.query), _of_rows(arguments)
    kept = torch.empty_like(lse, dtype=torch.int32)
    stood_in = kept.new_empty(step.units * step.rows)
    splits = _attend(step, count=True)
    _join(step, splits, out, lse=lse, kept=kept, stood_in=stood_in)
    value_rows = kept.new_empty((arguments.query.shape[0], arguments.num_key_value_heads))
    shape = {name: step.shape[name] for name in
                 ("GROUP", "HEADS", "TOKENS", "HEAD_BLOCKS", "TOKENS_PAD", "ROWS_PAD")}  # fmt: skip
    kernel.count_value_rows[(value_rows.numel(),)](
        splits.value_rows,
        stood_in,
        value_rows,
        **shape,
        PROGRAMS=step.programs,
        PROGRAMS_PAD=power_of_2(step.programs),
        num_warps=1,
    )
    return out, lse, kept, value_rows


def incremental_attention_partial(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run a decode step over a part of the keys. Return (out = N/R float32, m, R, E, kept int32), as the fallback."""
    step = make_step(arguments)
    out = _like(arguments.query, torch.float32)
    maximum, kept_mass, discarded_mass = (_of_rows(arguments) for _ in range(3))
    kept = torch.empty_like(maximum, dtype=torch.int32)
    _join(step, _attend(step, count=False), out, kept=kept, masses=(maximum, kept_mass, discarded_mass))
    return out, maximum, kept_mass, discarded_mass, kept


def _attend(step: Step, *, count: bool) -> _Splits:
    """Run the kernels over K and V."""
    a, shape = step.arguments, step.shape
    by_probability = a.placement != "pre_softmax"
    lse = _sampled_lse(step) if a.placement == "sampled_softmax" else a.lse
    stored = _score(step) if by_probability and lse is None else (None, None, None)
    of_splits = step.units, shape["SPLITS_PAD"], step.rows
    floats = step.threshold.new_empty((shape["D_PAD"] + 3, *of_splits), dtype=torch.float32)
    integers = step.threshold.new_empty((2, *of_splits), dtype=torch.int32)
    programs = step.units * step.programs
    listed = integers.new_empty((programs, step.split_keys))
    listed_scores = floats.new_empty((programs, step.rows, step.split_keys))
    value_rows = integers.new_empty((step.units, step.programs)) if count else None
    maximum, kept_mass, discarded_mass = floats[:3]
    kept, largest_at = integers
    splits = _Splits(floats[3:], maximum, kept_mass, discarded_mass, kept, largest_at, value_rows)
    kernel.attend[step.grid](
        step.query, step.key, step.value, step.key_scale, step.value_scale, step.threshold,
        *_lengths(step), a.block_table, a.learnable_sink, lse, *stored, listed, listed_scores, *splits,
        a.scale_value, *_sizes(step)[:2], step.split_keys, *_sizes(step)[2:], *step.threshold.stride(),
        *step.query.stride(), *step.key.stride(), *step.value.stride(), *_scale_strides(step.key_scale),
        *_scale_strides(step.value_scale), **shape, **step.tiles, VALUE_BLOCK=VALUE_KEYS,
        PRECISION=step.products[0], VALUE_PRECISION=step.products[1], PLACEMENT=_POST if by_probability else 0,
        KEY_BY_CHANNEL=step.by_channel[0], VALUE_BY_CHANNEL=step.by_channel[1], **step.launch,
    )  # fmt: skip
    return splits


def _sampled_lse(step: Step) -> Tensor:
    """Estimate the LSE of rows [B, Hq, Sq] from samples of their keys: no pass over K stores scores for it."""
    a, shape = step.arguments, step.shape
    lse = step.threshold.new_empty(step.threshold.shape)
    sizes = {name: size for name, size in (shape | step.tiles).items() if name != "SPLITS_PAD"}
    kernel_sampled.sampled_lse[(shape["TOKENS"], *step.grid[1:])](
        step.query, step.key, step.key_scale, *_lengths(step), a.block_table, a.learnable_sink, lse,
        a.scale_value, *_sizes(step), *step.query.stride(), *step.key.stride(), *_scale_strides(step.key_scale),
        **sizes | sample_tiles(step), PRECISION=step.products[0], KEY_BY_CHANNEL=step.by_channel[0],
    )  # fmt: skip
    return lse


def _score(step: Step) -> tuple[Tensor, Tensor, Tensor]:
    """Run the pass over K that post-softmax needs first. Return scores, and largest and mass of each split."""
    a, shape = step.arguments, step.shape
    rows = step.rows
    stored = step.threshold.new_empty((step.units, rows, step.capacity), dtype=torch.float32)
    maximum, mass = step.threshold.new_empty((2, step.units, shape["SPLITS_PAD"], rows), dtype=torch.float32)
    kernel.score[step.grid](
        step.query, step.key, step.key_scale, *_lengths(step), a.block_table, stored, maximum, mass,
        a.scale_value, *_sizes(step), *step.query.stride(), *step.key.stride(), *_scale_strides(step.key_scale),
        **shape, **step.tiles, PRECISION=step.products[0], KEY_BY_CHANNEL=step.by_channel[0],
        **step.launch,
    )  # fmt: skip
    return stored, maximum, mass


def _join(
    step: Step,
    splits: _Splits,
    out: Tensor,
    *,
    lse: Tensor | None = None,
    kept: Tensor | None = None,
    stood_in: Tensor | None = None,
    masses: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
) -> None:
    """Run the kernel that adds up the splits, and writes into ``out`` and what else is given."""
    a = step.arguments
    kernel.join[(step.units, step.rows)](
        *splits[:-1], step.value, step.value_scale, step.threshold, *_lengths(step), a.block_table,
        a.discarded_mass, a.value_mean, a.learnable_sink, out, lse, kept, stood_in, *masses,
        a.sdc_gamma, *_sizes(step), *step.threshold.stride(), *step.value.stride(),
        *_scale_strides(step.value_scale), *query_heads(out, a.input_layout, a.num_heads).stride()[:3],
        **step.shape, **step.tiles, VALUE_BY_CHANNEL=step.by_channel[1], SDC=SDC[a.sdc], num_warps=4,
    )  # fmt: skip


def _lengths(step: Step) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    a = step.arguments
    return a.actual_seq_lengths, a.key_start, a.actual_query_lengths


def _sizes(step: Step) -> tuple[int, int, int, int, int]:
    """List the capacity, the blocks of the cache, and the strides of lengths and block table."""
    a = step.arguments
    length_b, length_t = (0, 0) if a.actual_seq_lengths is None else (*a.actual_seq_lengths.stride(), 0)[:2]
    table_b = 0 if a.block_table is None else a.block_table.stride(0)
    return step.capacity, step.key.shape[0], length_b, length_t, table_b


def _scale_strides(scale: Tensor | None) -> tuple[int, ...]:
    return _NO_STRIDES if scale is None else scale.stride()


def _of_rows(a: Arguments) -> Tensor:
    """Make an empty per-row float32 tensor: [B, Hq], or [B, Hq, Sq] with several tokens."""
    tokens = a.query_tokens
    of_tokens = () if tokens == 1 else (tokens,)
    return a.threshold.new_empty((a.query.shape[0], a.num_heads, *of_tokens))


def _like(query: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(query, dtype=dtype, memory_format=torch.contiguous_format)
