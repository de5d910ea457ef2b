"""How a decode step is divided among Triton programs, and what its kernels are launched with."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .._checks import SDC_MODES
from ..fallback.antiquant import PER_CHANNEL, scale_rows
from ..fallback.arguments import Arguments
from ..fallback.layout import head_block, head_view, query_heads
from . import kernel_parts as parts

SDC = {name: number for number, name in enumerate(SDC_MODES)}
#: Rows and columns that tl.dot needs.
_LEAST = 16
#: Keys of a K tile, and V rows that a program reads at once. Programs of one warp won on an H100 (bfloat16, head_dim
#: 128, groups of 1 and 4): sums over a row stay in a warp, and many programs share a multiprocessor.
_KEYS, VALUE_KEYS, _STAGES, _PROGRAMS = 32, 16, 2, 16
#: Keys of a sample that a program multiplies at once, and their bytes: of three such tiles two lie in shared memory.
_SAMPLED_KEYS, _SAMPLED_BYTES, _SAMPLED_STAGES = 128, 32768, 3
#: Sums of V rows that the registers of a warp hold.
_SUMS_OF_A_WARP, _MAX_WARPS = 2048, 8


class Step(NamedTuple):
    """A decode step as the kernels see it.

    Attributes:
        arguments: as the checks left them; what the kernels read element by element is contiguous.
        query, key, value, key_scale, value_scale: views by [sequence or block, head, row, element].
        threshold: [B, Hq, Sq], a view.
        capacity: of a sequence, in keys.
        units: KV heads of all sequences, times the blocks of their query heads.
        shape, tiles, launch: constants of the kernels.
        programs: of each unit, which share the splits of a row.
        split_keys: the most keys of a split.
        products: how tl.dot multiplies with K and with V.
        by_channel: whether scales of K and of V are those of channels.
    """

    arguments: Arguments
    query: Tensor
    key: Tensor
    value: Tensor
    key_scale: Tensor | None
    value_scale: Tensor | None
    threshold: Tensor
    capacity: int
    units: int
    shape: dict[str, int]
    tiles: dict[str, int | bool]
    launch: dict[str, int]
    programs: int
    split_keys: int
    products: tuple[str, str]
    by_channel: tuple[bool, bool]

    @property
    def rows(self) -> int:
        """The rows of a unit: query heads times tokens."""
        return self.shape["HEADS"] * self.shape["TOKENS"]

    @property
    def grid(self) -> tuple[int, int, int]:
        """The programs of a pass over the keys."""
        kv_heads = self.shape["KV_HEADS"]
        return self.programs, kv_heads, self.units // kv_heads


def make_step(a: Arguments) -> Step:
    """Look at a call's shapes and strides alone: nothing is read from the device."""
    paged = a.block_table is not None
    a = _contiguous(a)
    query = query_heads(a.query, a.input_layout, a.num_heads)
    key, value = (head_view(cache, a.input_layout, a.num_key_value_heads, paged=paged) for cache in (a.key, a.value))
    batch, _, tokens, head_dim = query.shape
    group = a.num_heads // a.num_key_value_heads
    heads = min(group, head_block(head_dim))
    head_blocks, tokens_pad = -(-group // heads), power_of_2(tokens)
    rows, d_pad = max(_LEAST, power_of_2(heads) * tokens_pad), max(_LEAST, power_of_2(head_dim))
    capacity = key.shape[2] * (1 if a.block_table is None else a.block_table.shape[1])
    units = batch * a.num_key_value_heads * head_blocks
    splits, split_keys = largest_splits(capacity)
    shape = {
        "KV_HEADS": a.num_key_value_heads, "GROUP": group, "HEADS": heads, "TOKENS": tokens, "D": head_dim,
        "HEAD_BLOCKS": head_blocks, "TOKENS_PAD": tokens_pad, "ROWS_PAD": rows, "D_PAD": d_pad,
        "SPLITS_PAD": power_of_2(splits),
    }  # fmt: skip
    tiles = {
        "BLOCK": _KEYS, "PAGE": key.shape[2] if paged else 0, "WIDE": not isinstance(parts.locate, triton.JITFunction),
        "OF_TOKENS": a.actual_seq_lengths is not None and a.actual_seq_lengths.dim() == 2,
    }  # fmt: skip
    programs = min(splits, max(1, _PROGRAMS * _multiprocessors(query.device) // units))
    scales = [a.key_antiquant_scale, a.value_antiquant_scale]
    modes = [a.key_antiquant_mode, a.value_antiquant_mode]
    key_by_channel, value_by_channel = (
        scale is not None and mode == PER_CHANNEL for scale, mode in zip(scales, modes, strict=True)
    )
    warps = max(1, rows * d_pad // _SUMS_OF_A_WARP)
    if key_by_channel or value_by_channel:  # float32 products need registers
        warps *= 4
    return Step(
        arguments=a, query=query, key=key, value=value,
        key_scale=_scales(scales[0], modes[0], key), value_scale=_scales(scales[1], modes[1], value),
        threshold=_thresholds(a.threshold, query), capacity=capacity, units=units, shape=shape, tiles=tiles,
        launch={"STAGES": _STAGES, "num_warps": min(_MAX_WARPS, warps)}, programs=programs, split_keys=split_keys,
        products=(_product(key_by_channel), _product(value_by_channel)), by_channel=(key_by_channel, value_by_channel),
    )  # fmt: skip


def sample_tiles(step: Step) -> dict[str, int]:
    """Choose what differs where a program reads a sample of keys, for one token: few of them run, on large tiles."""
    element = torch.float32.itemsize if step.by_channel[0] else step.query.element_size()
    return {
        "ROWS_PAD": _LEAST,  # a block has fewer heads
        "BLOCK": min(_SAMPLED_KEYS, _SAMPLED_BYTES // (step.shape["D_PAD"] * element)),
        "num_warps": _MAX_WARPS, "num_stages": _SAMPLED_STAGES,
    }  # fmt: skip


def _product(by_channel: bool) -> str:
    """Name how tl.dot multiplies: 16-bit numbers as they are, float32 in three products of TF32."""
    return "tf32x3" if by_channel else "ieee"


def largest_splits(capacity: int) -> tuple[int, int]:
    """Bound the number and the keys of the splits of rows with up to ``capacity`` keys: see `parts.split_row`."""
    least, splits, long, long_splits = (
        constant.value for constant in (parts.SPLIT_KEYS, parts.SPLITS, parts.LONG, parts.LONG_SPLITS)
    )
    keys = max(least, _keys_of(min(capacity, long), splits))
    if capacity > long:
        return long_splits, max(keys, _keys_of(capacity, long_splits))
    return max(1, min(-(-capacity // least), splits)), keys


def _keys_of(row: int, splits: int) -> int:
    """Count the keys of a split, in whole tiles."""
    return -(-row // (splits * _KEYS)) * _KEYS


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    """Count them; a CPU has some for the interpreter, where programs share rows too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


def _contiguous(a: Arguments) -> Arguments:
    """Copy the small tensors that are not contiguous; as a rule all are."""
    names = (
        "key_start", "block_table", "actual_query_lengths", "discarded_mass", "value_mean", "learnable_sink", "lse"
    )  # fmt: skip
    given = {name: getattr(a, name) for name in names}
    copied = {name: t.contiguous() for name, t in given.items() if t is not None and not t.is_contiguous()}
    return a._replace(**copied) if copied else a


def _thresholds(threshold: Tensor, query: Tensor) -> Tensor:
    """View thresholds [Hq], [B, Hq] or [B, Hq, Sq] as [B, Hq, Sq]."""
    return (threshold if threshold.dim() == 3 else threshold[..., None]).expand(query.shape[:3])


def _scales(scale: Tensor | None, mode: int, cache: Tensor) -> Tensor | None:
    """View the scales of a cache as its rows [.., head, row, D]."""
    if scale is None:
        return None
    return scale_rows(scale, mode, cache.shape[1], cache.shape[3]).expand(cache.shape)


def power_of_2(least: int) -> int:
    """Return the smallest power of 2 that is at least ``least``, 1 or more."""
    return 1 << (least - 1).bit_length()
