"""An int8 cache in the pages of an engine whose own kernels read none: how rows get in, and what is dense of it.

On a CPU each row of a KV head has a scale of its own. In vLLM such rows are [K | scale | V | scale], of 2D + 8 bytes.
Here a page of a head has as many bytes, but all keys lie before all values, and the scales of both behind them: a
decode step reads the keys of all rows and the values of few, so a line of memory should not hold both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._value_checks import host_can_read
from ..cpu import page_sums as native
from ..errors import TopThetaNotImplementedError
from ..fallback.antiquant import PER_CHANNEL, PER_TOKEN_AND_HEAD_PAGED, dequantise, quantise, token_scale
from ..ops import incremental_attention
from .layouts import Antiquant, Pages

#: What vLLM calls such a cache.
INT8_CACHE = "int8_per_token_head"
#: Sequences with up to as many new tokens are read as they lie, once for each token. For more, rows are multiplied out.
FEW_TOKENS = 8
_SCALE = torch.float32
_LAYOUT = "int8 keys, values and then their scales, [blocks, Hkv, block_size, 2D + 8]"


class Int8Pages(NamedTuple):
    """A cache of both keys and values.

    Attributes:
        numbers: int8 [blocks, Hkv, 2, block_size, D].
        scales: float32 [blocks, Hkv, 2, block_size].
        pages: the same as the operator takes them.
        packed: the same for the native form of `write_rows`.
    """

    numbers: Tensor
    scales: Tensor
    pages: Pages
    packed: bytes


def row_bytes(head_dim: int) -> int:
    """Count the bytes of a row of K and V of one head, with its two scales."""
    return 2 * (head_dim + _SCALE.itemsize)


def view_int8_pages(kv_cache: Tensor, num_key_value_heads: int, head_dim: int) -> Int8Pages:
    """View the cache of a layer.

    Args:
        kv_cache: int8 [blocks, Hkv, block_size, 2D + 8], without gaps in a page of a head.

    Raises:
        TopThetaNotImplementedError: it has another shape, or gaps.

    Example:
        >>> numbers, scales, pages, _ = view_int8_pages(torch.zeros(3, 2, 16, 72, dtype=torch.int8), 2, 32)
        >>> numbers.shape, scales.shape, pages.keys.shape
        (torch.Size([3, 2, 2, 16, 32]), torch.Size([3, 2, 2, 16]), torch.Size([3, 2, 16, 32]))
    """
    width = row_bytes(head_dim)
    fits = kv_cache.dim() == 4 and kv_cache.shape[1::2] == (num_key_value_heads, width)
    if not fits or kv_cache.dtype != torch.int8 or kv_cache.stride()[2:] != (width, 1):
        raise TopThetaNotImplementedError(
            "kv_cache", f"{_LAYOUT} with Hkv {num_key_value_heads} and D {head_dim}, without gaps in a page",
            f"{list(kv_cache.shape)} of {kv_cache.dtype} with strides {list(kv_cache.stride())}",
            "install a version of the engine that was tried, or set kv_cache_dtype='auto'",
        )  # fmt: skip
    blocks, heads, rows, _ = kv_cache.shape
    outer = kv_cache.stride()[:2]
    numbers = kv_cache.as_strided((blocks, heads, 2, rows, head_dim), (*outer, rows * head_dim, head_dim, 1))
    words = kv_cache.view(_SCALE)
    first = words.storage_offset() + 2 * rows * head_dim // _SCALE.itemsize
    scales = words.as_strided((blocks, heads, 2, rows), (*words.stride()[:2], rows, 1), first)
    (keys, values), (key_scale, value_scale) = numbers.unbind(2), scales.unbind(2)
    antiquant = Antiquant(key_scale, value_scale, PER_TOKEN_AND_HEAD_PAGED, PER_TOKEN_AND_HEAD_PAGED)
    return Int8Pages(numbers, scales, Pages(keys, values, antiquant), native.pack_int8_cache(numbers, scales))


def write_rows(cache: Int8Pages, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Round the rows of new tokens and write them into their places.

    Args:
        key, value: [T, Hkv, D], and padding.
        slots: int [T], of each token its page times block_size, and its row in it; negative: it has none.
    """
    if host_can_read(key) and native.write_int8_rows(cache.packed, key, value, slots):
        return
    rows = torch.stack((key[: len(slots)], value[: len(slots)]), 2)
    if len(slots) and int(slots.min()) < 0:
        rows, slots = rows[slots >= 0], slots[slots >= 0]
    scale = token_scale(rows)
    block_size = cache.scales.shape[3]
    page, row = slots // block_size, slots % block_size
    cache.numbers[page, :, :, row] = quantise(rows, scale[..., None])
    cache.scales[page, :, :, row] = scale


def dequantise_pages(cache: Pages, pages: Tensor, to: Pages) -> None:
    """Write what some pages of an int8 cache stand for into others.

    Args:
        pages: int64 [P], of the cache.
        to: pages 0 to P - 1 of it are written.
    """
    assert cache.antiquant is not None
    key_scale, value_scale, *modes = cache.antiquant
    for numbers, scale, mode, rows in zip(cache[:2], (key_scale, value_scale), modes, to[:2], strict=True):
        beside = scale[:, None] if mode == PER_CHANNEL else scale[pages][..., None]
        rows[: len(pages)] = dequantise(numbers[pages], beside)


def renumbered(block_table: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
    """List the pages of some sequences, int64 [P], and the table of these sequences by their places in that list.

    Args:
        block_table: int32 [B, blocks].
        pages: int64 [B], how many each has.

    Example:
        >>> [each.tolist() for each in renumbered(torch.tensor([[7, 9], [4, -1]]), torch.tensor([2, 1]))]
        [[7, 9, 4], [[0, 1], [2, 0]]]
    """
    has = torch.arange(block_table.shape[1], device=pages.device) < pages[:, None]
    numbers = torch.zeros_like(block_table)
    numbers[has] = torch.arange(int(pages.sum()), dtype=numbers.dtype, device=numbers.device)
    return block_table[has].long(), numbers


def new_tokens(sequences: Tensor, query_start_loc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """List the new tokens of some sequences [P]: the sequence of each, its number in it, and all sequences' counts.

    Example:
        >>> [each.tolist() for each in new_tokens(torch.tensor([1]), torch.tensor([0, 4, 6]))]
        [[1, 1], [0, 1], [4, 2]]
    """
    counts = query_start_loc[1:] - query_start_loc[:-1]
    of = sequences.repeat_interleave(counts[sequences])
    before = counts[sequences].cumsum(0) - counts[sequences]
    return of, torch.arange(len(of), device=of.device) - before.repeat_interleave(counts[sequences]), counts


@dataclass(frozen=True)
class DenseRows:
    """Tokens that attend to all keys up to their own.

    Attributes:
        tokens: int64 [R], of the step.
        lengths: int32 [R], their keys.
        block_table: int32 [R, blocks], the pages of their sequences.
    """

    tokens: Tensor
    lengths: Tensor
    block_table: Tensor

    @classmethod
    def of(cls, sequences: Tensor, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor) -> DenseRows:
        """List the new tokens of some sequences [P], each of which may have several; two arguments are on the CPU.

        Example:
            >>> starts, lengths, table = torch.tensor([0, 4, 6]), torch.tensor([9, 20]), torch.zeros(2, 3)
            >>> rows = DenseRows.of(torch.tensor([1]), starts, lengths, table)
            >>> rows.tokens.tolist(), rows.lengths.tolist()
            ([4, 5], [19, 20])
        """
        of, order, counts = new_tokens(sequences, query_start_loc)
        tokens, behind = query_start_loc[of].long() + order, counts[of] - 1 - order
        of, tokens, behind = (each.to(seq_lens.device) for each in (of, tokens, behind))
        return cls(tokens, (seq_lens[of] - behind).int(), block_table[of])

    def attend(self, query: Tensor, pages: Pages, scale: float, out: Tensor) -> None:
        """Write the rows [T, Hq, D] of these tokens: by the operator, which keeps everything above -inf."""
        assert pages.antiquant is not None
        rows = query[self.tokens]
        theta = rows.new_full(rows.shape[1:2], -torch.inf, dtype=torch.float32)
        result = incremental_attention(
            rows.unsqueeze(2), pages.keys, pages.values, theta,
            actual_seq_lengths=self.lengths, block_table=self.block_table, block_size=pages.keys.shape[2],
            num_key_value_heads=pages.keys.shape[1], scale_value=scale, **pages.antiquant._asdict(),
        )  # fmt: skip
        out[self.tokens] = result.squeeze(2)
