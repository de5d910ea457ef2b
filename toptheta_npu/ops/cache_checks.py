"""Checks a KV cache: its shape against the query, its pages, and its int8 scales."""

from __future__ import annotations

import torch
from torch import Tensor

from .._checks import check_tensor, shape_text
from ..errors import TopThetaCombinationError, TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown
from ..fallback.antiquant import PER_CHANNEL, PER_TOKEN_AND_HEAD, PER_TOKEN_AND_HEAD_PAGED
from ..fallback.arguments import TABLE, Arguments

_MODES = {
    PER_CHANNEL: "per channel", PER_TOKEN_AND_HEAD: "per token and head", PER_TOKEN_AND_HEAD_PAGED: "the same paged",
}  # fmt: skip


def check_cache(given: Arguments, kv_heads: int, head_dim: int) -> None:
    """Check the shapes of K and V against the query and each other."""
    query, key, value, paged = given.query, given.key, given.value, given.block_table is not None
    shape = key.shape
    dims = len(shape)
    rows_at = 1 if dims == 3 or (given.input_layout == "BSND" and not paged) else 2
    batch = shape[0] if paged else query.shape[0]
    rows = given.block_size if paged else shape[rows_at]
    if dims == 3:
        want: tuple[int, ...] = (batch, rows, kv_heads * head_dim)
        names = " [blocks, block_size, Hkv*D]" if paged else " [B, S, Hkv*D]"
    elif rows_at == 2:
        want = (batch, kv_heads, rows, head_dim)
        names = " [blocks, Hkv, block_size, D]" if paged else " [B, Hkv, S, D]"
    else:
        want, names = (batch, rows, kv_heads, head_dim), " [B, S, Hkv, D]"
    check_tensor("key", key, query, want, (query.dtype, torch.int8), names)
    if key.dtype is not torch.int8 and isinstance(value, Tensor) and value.dtype is torch.int8:
        wanted = f"{_name(key.dtype)}, as key is"
        raise TopThetaNotImplementedError("value", wanted, "int8", "quantise K alone, or both")
    dtypes = (query.dtype,) if key.dtype is query.dtype else (query.dtype, torch.int8)
    check_tensor("value", value, query, shape, dtypes, ", like key")
    if rows < 1 or batch < 1:
        raise TopThetaValueError("key", "room for at least one key", shape_text(key))


def check_paging(
    query: Tensor, block_table: Tensor | None, block_size: int, lengths: Tensor | None, key_start: Tensor | None
) -> None:
    """Check the arguments that paging needs and excludes."""
    if type(block_size) is not int:
        raise TopThetaTypeError("block_size", "an int", type(block_size).__name__)
    if block_table is None:
        if block_size:
            remedy = "give the table of the paged cache, or leave block_size out"
            raise TopThetaCombinationError(f"block_size={shown(block_size)}", "needs", "block_table", remedy)
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


def check_antiquant(given: Arguments, kv_heads: int, head_dim: int) -> None:
    """Check that int8 caches have scales and other caches have none; K and V have passed `check_cache`."""
    caches = (
        ("key", given.key, given.key_antiquant_scale, given.key_antiquant_mode),
        ("value", given.value, given.value_antiquant_scale, given.value_antiquant_mode),
    )
    for name, cache, scale, mode in caches:
        _check_mode(f"{name}_antiquant_mode", mode, paged=given.block_table is not None)
        argument = f"{name}_antiquant_scale"
        if (scale is None) == (cache.dtype is torch.int8):
            if scale is None:
                raise TopThetaValueError(argument, "the scales of an int8 cache", "None")
            kind = f"an int8 cache, and {name} is {_name(cache.dtype)}"
            raise TopThetaCombinationError(argument, "needs", kind, "leave it out, or quantise the cache")
        if scale is None:
            if mode != PER_CHANNEL:
                wanted = f"{PER_CHANNEL}, since {name} is {_name(cache.dtype)}"
                raise TopThetaValueError(f"{name}_antiquant_mode", wanted, str(mode))
            continue
        dtypes = TABLE[argument].about.dtypes
        if mode == PER_CHANNEL:
            check_tensor(argument, scale, given.query, None, dtypes)
            _check_per_channel(argument, scale, kv_heads, head_dim)
        else:
            rows, names = _scales_by_row(cache, given, kv_heads)
            check_tensor(argument, scale, given.query, rows, dtypes, names)


def _check_mode(name: str, mode: object, *, paged: bool) -> None:
    if type(mode) is not int:
        raise TopThetaTypeError(name, "an int", shown(mode))
    if mode not in _MODES:
        known = ", ".join(f"{number} ({meaning})" for number, meaning in _MODES.items())
        raise TopThetaNotImplementedError(name, known, shown(mode), "quantise the cache in one of these ways")
    if mode != PER_CHANNEL and (mode == PER_TOKEN_AND_HEAD_PAGED) != paged:
        wanted = PER_TOKEN_AND_HEAD_PAGED if paged else PER_TOKEN_AND_HEAD
        cache = "paged" if paged else "not paged"
        raise TopThetaValueError(name, f"{wanted} or {PER_CHANNEL}, since the cache is {cache}", str(mode))


def _check_per_channel(name: str, scale: Tensor, kv_heads: int, head_dim: int) -> None:
    shape = scale.shape
    whole = (kv_heads * head_dim,), (kv_heads, 1, head_dim)
    fits = len(shape) in (1, 2) and all(
        size in (1, wanted) for size, wanted in zip(reversed(shape), (head_dim, kv_heads), strict=False)
    )
    if not fits and tuple(shape) not in whole:
        wanted = f"shape [{kv_heads}, {head_dim}] [Hkv, D], or what broadcasts to it"
        raise TopThetaValueError(name, wanted, shape_text(scale), "of mode 0 there is one number per channel")


def _scales_by_row(cache: Tensor, given: Arguments, kv_heads: int) -> tuple[tuple[int, ...], str]:
    """Find the shape of scales per token and head, and its axes in words."""
    if given.block_table is not None:
        return (cache.shape[0], kv_heads, given.block_size), " [blocks, Hkv, block_size]"
    rows = cache.shape[2 if given.input_layout == "BNSD" else 1]
    return (cache.shape[0], kv_heads, rows), " [B, Hkv, S]"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
