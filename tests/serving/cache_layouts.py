"""Caches as engines lay them out, each in memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from toptheta_npu.vllm.layouts import Layout


def _column_keys(keys: Tensor, values: Tensor) -> Tensor:
    blocks, heads, rows, dim = keys.shape
    parts = keys.transpose(2, 3).reshape(blocks, heads, -1), values.reshape(blocks, heads, -1)
    return torch.cat(parts, 2).view(blocks, heads, rows, 2 * dim)


def _in_larger_blocks(cache: Tensor) -> Tensor:
    """The same with other things behind each block, as where layers share a page."""
    larger = torch.full((len(cache), 3, *cache.shape[1:]), torch.nan, dtype=cache.dtype)
    larger[:, 1] = cache
    return larger[:, 1]


#: What an engine would hand over for keys and values [blocks, Hkv, block_size, D], by the layout that it says it has.
ENGINES: dict[str, tuple[Layout, Callable[[Tensor, Tensor], Any]]] = {
    "split": (Layout.SPLIT, lambda k, v: tuple(each.transpose(1, 2).contiguous() for each in (k, v))),
    "split, in a list": (Layout.SPLIT, lambda k, v: [each.transpose(1, 2).contiguous() for each in (k, v)]),
    "split, stacked": (Layout.SPLIT, lambda k, v: torch.stack([k, v]).transpose(2, 3).contiguous()),
    "split, side by side": (Layout.SPLIT, lambda k, v: torch.stack([k, v], 1).transpose(2, 3).contiguous().unbind(1)),
    "HND": (Layout.SPLIT_HND, lambda k, v: (k.clone(), v.clone())),
    "HND, side by side": (Layout.SPLIT_HND, lambda k, v: torch.stack([k, v], 1).unbind(1)),
    "column keys": (Layout.COLUMN_KEYS, _column_keys),
    "column keys, in larger blocks": (Layout.COLUMN_KEYS, lambda k, v: _in_larger_blocks(_column_keys(k, v))),
}


def storages(cache: Any) -> set[int]:
    """Where the memory of a cache or of pages lies."""
    parts = [cache] if isinstance(cache, Tensor) else cache
    return {part.untyped_storage().data_ptr() for part in parts}
