"""One view of every layout: query [B, Hq, D] and a KV cache that answers for rows, contiguous or paged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def query_heads(query: Tensor, input_layout: str, num_heads: int) -> Tensor:
    """The query of one token as a view [B, Hq, D]."""
    if input_layout == "BNSD":
        return query[:, :, 0]
    if input_layout == "BSND":
        return query[:, 0]
    return query[:, 0].view(len(query), num_heads, -1)


def in_layout(out: Tensor, input_layout: str) -> Tensor:
    """[B, Hq, D] in the order of the layout, contiguous."""
    if input_layout == "BNSD":
        return out.unsqueeze(2)
    if input_layout == "BSND":
        return out.unsqueeze(1)
    return out.reshape(out.shape[0], 1, -1)


def head_view(cache: Tensor, input_layout: str, num_key_value_heads: int, *, paged: bool) -> Tensor:
    """A K or V cache as a strided view [B or blocks, Hkv, S or block_size, D]; never a copy."""
    if cache.dim() == 3:
        return cache.view(*cache.shape[:2], num_key_value_heads, -1).transpose(1, 2)
    return cache if paged or input_layout == "BNSD" else cache.transpose(1, 2)


def head_block(head_dim: int) -> int:
    """Query heads of a KV group that an operator handles at once, reading each V row once for all of them."""
    return 8 if head_dim <= 256 else 4


def count_value_rows(keep: Tensor, num_key_value_heads: int, head_dim: int) -> Tensor:
    """V rows read, [B, Hkv, ...]: the union over a block of 8 query heads (4 above head_dim 256), summed over blocks.

    Args:
        keep: bool [B, Hq, ..., S].
    """
    blocks = keep.unflatten(1, (num_key_value_heads, -1)).split(head_block(head_dim), dim=2)
    return torch.stack([block.any(2).sum(-1) for block in blocks]).sum(0)


def count_group_rows(keep: Tensor, num_key_value_heads: int) -> Tensor:
    """V rows needed, [B, Hkv, ...]: the union over all query heads of a KV group; ``keep`` as above."""
    union: Tensor = keep.unflatten(1, (num_key_value_heads, -1)).any(2)
    return union.sum(-1)


def valid_range(query: Tensor, capacity: int, starts: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Per sequence the first valid key and the number of valid keys, int64 [B], clamped to the cache."""
    starts = query.new_zeros(len(query), dtype=torch.long) if starts is None else starts.long().clamp(0, capacity)
    room = capacity - starts
    return starts, room if lengths is None else lengths.long().clamp(min=0).minimum(room)


@dataclass(frozen=True)
class KeyValueCache:
    """K and V of a batch seen as [B, Hkv, capacity, D], whatever the storage.

    ``key`` and ``value`` are strided views [B, Hkv, S, D], or [blocks, Hkv, block_size, D] with a
    ``block_table`` [B, max_blocks] whose entries at or past a sequence's last block are never used.
    """

    key: Tensor
    value: Tensor
    block_table: Tensor | None = None

    @property
    def num_key_value_heads(self) -> int:
        return self.key.shape[1]

    @property
    def capacity(self) -> int:
        return self.key.shape[2] * (1 if self.block_table is None else self.block_table.shape[1])

    def key_rows(self, sequence: int, start: int, end: int) -> Tensor:
        """K rows start to end-1 of one sequence, [Hkv, end - start, D]; a copy only where pages are scattered."""
        return self._rows(self.key, sequence, start, end)

    def value_rows(self, sequence: int, start: int, end: int) -> Tensor:
        """V rows start to end-1 of one sequence, [Hkv, end - start, D]."""
        return self._rows(self.value, sequence, start, end)

    def _rows(self, cache: Tensor, sequence: int, start: int, end: int) -> Tensor:
        if self.block_table is None:
            return cache[sequence, :, start:end]
        block_size = cache.shape[2]
        blocks = self.block_table[sequence, : -(-end // block_size)].long()
        return cache[blocks].transpose(0, 1).flatten(1, 2)[:, start:end]

    def locate_values(self, element: Tensor, row: Tensor, num_heads: int, span: int) -> tuple[Tensor, Tensor]:
        """A table [rows, D], and the row numbers in it of V at elements of the scores [B, num_heads, span].

        ``element`` is a flat index into the scores and ``row`` = element // span. The table is the cache itself
        wherever its strides allow it, else a copy of just these rows.
        """
        head_dim, strides = self.value.shape[3], self.value.stride()
        group = num_heads // self.num_key_value_heads
        in_rows = strides[3] == 1 and not any(stride % head_dim for stride in strides[:3])
        a, b, c = (stride // head_dim for stride in strides[:3])
        if in_rows and self.block_table is None:
            rows = torch.arange(self.value.shape[0] * num_heads, device=row.device)
            base = rows // num_heads * a + rows % num_heads // group * b - rows * (span * c)
            return self._value_table((a, b, c)), base.index_select(0, row).add_(element, alpha=c)

        sequence, head, position = row // num_heads, row % num_heads // group, element - row * span
        if self.block_table is not None:
            block_size = self.value.shape[2]
            sequence = self.block_table[sequence, position // block_size].long()
            position = position % block_size
        if in_rows:
            return self._value_table((a, b, c)), sequence * a + head * b + position * c
        picked = self.value[sequence, head, position]
        return picked, torch.arange(len(picked), device=picked.device)

    def _value_table(self, strides: tuple[int, int, int]) -> Tensor:
        """V as [rows, D], for strides in rows of D elements."""
        spanned = 1 + sum((size - 1) * stride for size, stride in zip(self.value.shape[:3], strides, strict=True))
        head_dim = self.value.shape[3]
        return self.value.as_strided((spanned, head_dim), (head_dim, 1))
