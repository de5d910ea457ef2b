"""One view for every layout: the query as [B, Hq, Sq, D], and a KV cache, contiguous or paged, addressed by rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .antiquant import dequantise, scale_rows
from .arguments import Arguments


def query_heads(query: Tensor, input_layout: str, num_heads: int) -> Tensor:
    """View a query, or a tensor in its layout, as [B, Hq, Sq, D]."""
    if input_layout == "BNSD":
        return query
    return (query.unflatten(2, (num_heads, -1)) if input_layout == "BSH" else query).transpose(1, 2)


def in_layout(out: Tensor, input_layout: str) -> Tensor:
    """Convert [B, Hq, Sq, D] to the layout, contiguous."""
    if input_layout == "BNSD":
        return out.contiguous()
    rows = out.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return rows.flatten(2) if input_layout == "BSH" else rows


def drop_token_axis(of_rows: Tensor) -> Tensor:
    """View a per-row tensor [B, Hq, Sq] of a one-token step as [B, Hq]; leave others as they are."""
    return of_rows.squeeze(2)


def head_view(cache: Tensor, input_layout: str, num_key_value_heads: int, *, paged: bool) -> Tensor:
    """View a K or V cache, strided, as [B or blocks, Hkv, S or block_size, D]; never copy it."""
    if cache.dim() == 3:
        return cache.view(*cache.shape[:2], num_key_value_heads, -1).transpose(1, 2)
    return cache if paged or input_layout == "BNSD" else cache.transpose(1, 2)


def head_block(head_dim: int) -> int:
    """Choose how many query heads of a KV group an operator handles at once; they share each read of a V row."""
    return 8 if head_dim <= 256 else 4


def count_value_rows(keep: Tensor, num_key_value_heads: int, head_dim: int) -> Tensor:
    """Count V rows read, [B, Hkv, ...]: the union over 8 query heads (4 above head_dim 256), summed over such blocks.

    Args:
        keep: bool [B, Hq, ..., S]. For a step with several tokens, the union of what they keep, [B, Hq, S].
    """
    blocks = keep.unflatten(1, (num_key_value_heads, -1)).split(head_block(head_dim), dim=2)
    return torch.stack([count_true(any_true(block, 2)) for block in blocks]).sum(0)


def count_group_rows(keep: Tensor, num_key_value_heads: int) -> Tensor:
    """Count V rows needed, [B, Hkv, ...]: the union over all query heads of a KV group; ``keep`` as above."""
    return count_true(any_true(keep.unflatten(1, (num_key_value_heads, -1)), 2))


def any_true(flags: Tensor, dim: int, *, keepdim: bool = False) -> Tensor:
    """Reduce like ``flags.any``, but a hundred times faster on a CPU; ``dim`` must not be empty."""
    return flags.view(torch.uint8).amax(dim, keepdim=keepdim).bool()


def count_true(flags: Tensor) -> Tensor:
    """Count True along the last dimension, int32; PyTorch's own choice of int64 is four times slower."""
    return flags.sum(-1, dtype=torch.int32)


def valid_range(query: Tensor, capacity: int, starts: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Find the first valid key of each sequence, int64 [B], and the number of valid keys, clamped to the cache.

    The numbers are [B], or [B, Sq] like ``lengths``.
    """
    starts = query.new_zeros(len(query), dtype=torch.long) if starts is None else starts.long().clamp(0, capacity)
    room = capacity - starts
    if lengths is None:
        return starts, room
    return starts, lengths.long().clamp(min=0).minimum(room if lengths.dim() == 1 else room[:, None])


def row_lengths(n: Tensor, query_lengths: Tensor | None, tokens: int) -> Tensor:
    """Count the keys that each token sees, int64 [B, Sq]. The n valid keys [B] include the tokens' own.

    Of s real tokens, token t sees the first n - s + 1 + t keys; tokens behind them see none. s is clamped to n and Sq.
    """
    token, n = torch.arange(tokens, device=n.device), n.long()[:, None]
    real = n.clamp(max=tokens) if query_lengths is None else query_lengths.long()[:, None].clamp(0, tokens).minimum(n)
    return torch.where(token < real, n - real + 1 + token, 0)


@dataclass(frozen=True)
class CachedRows:
    """The K or V rows of a batch, addressed as [B, Hkv, capacity, D] whatever the storage; float32 when read.

    ``rows`` is a strided view [B, Hkv, S, D], or [blocks, Hkv, block_size, D] with a ``block_table`` [B, max_blocks].
    Entries past a sequence's last block are never used. ``scale`` broadcasts to the rows of an int8 cache
    (`antiquant.scale_rows`).
    """

    rows: Tensor
    scale: Tensor | None = None
    block_table: Tensor | None = None

    def dequantised(self) -> Tensor:
        """Return all rows, int8 ones dequantised and others unchanged."""
        return self.rows if self.scale is None else dequantise(self.rows, self.scale)

    def of_head(self, sequence: int, head: int, start: int, end: int) -> Tensor:
        """Take rows start to end-1 of one sequence and KV head, [end - start, D]."""
        rows = self._range(self.rows, sequence, head, start, end)
        if self.scale is None:
            return rows.float()
        one_for_all = self.scale.shape[2] == 1 and self.scale.shape[0] == 1
        scale = self.scale[0, head] if one_for_all else self._range(self.scale, sequence, head, start, end)
        return dequantise(rows, scale)

    def gather(self, sequence: Tensor, head: Tensor, position: Tensor) -> Tensor:
        """Copy only the rows that the three indices [rows] select, [rows, D]."""
        if self.block_table is not None:
            block_size = self.rows.shape[2]
            sequence, position = self.block_table[sequence, position // block_size], position % block_size
        rows = self.rows[sequence, head, position]
        if self.scale is None:
            return rows.float()
        return dequantise(rows, self.scale.expand(*self.rows.shape[:3], -1)[sequence, head, position])

    def _range(self, cache: Tensor, sequence: int, head: int, start: int, end: int) -> Tensor:
        if self.block_table is None:
            return cache[sequence, head, start:end]
        blocks = self.block_table[sequence, : -(-end // cache.shape[2])]
        return cache[blocks, head].flatten(0, 1)[start:end]


class KeyValueCache(NamedTuple):
    """K and V of a batch."""

    key: CachedRows
    value: CachedRows

    @classmethod
    def of(cls, a: Arguments) -> KeyValueCache:
        """View a cache of any layout; block numbers are clamped to it, as lengths are."""
        table = None if a.block_table is None else a.block_table.long().clamp(0, len(a.key) - 1)
        sizes = a.num_key_value_heads, a.head_dim
        views = []
        for cache, scale, mode in (
            (a.key, a.key_antiquant_scale, a.key_antiquant_mode),
            (a.value, a.value_antiquant_scale, a.value_antiquant_mode),
        ):
            rows = head_view(cache, a.input_layout, a.num_key_value_heads, paged=table is not None)
            views.append(CachedRows(rows, None if scale is None else scale_rows(scale, mode, *sizes), table))
        return cls(*views)

    @property
    def num_key_value_heads(self) -> int:
        return self.key.rows.shape[1]

    @property
    def head_dim(self) -> int:
        return self.key.rows.shape[3]

    @property
    def capacity(self) -> int:
        table = self.key.block_table
        return self.key.rows.shape[2] * (1 if table is None else table.shape[1])
