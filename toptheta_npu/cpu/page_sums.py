"""The native form of `vllm.page_sums`: one call makes the V sums that a step of a serving engine ends, and means."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .backend import CPU_SELECTOR
from .library import RUN_IN_PARALLEL, SUMS_OF_LAYER, WRITTEN_ROWS, loaded
from .threads import thread_count


def find(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Find the library for caches of a dtype where operators are native; load it if need be.

    Its ``toptheta_page_sums`` makes the sums that a step ends, then the means of its sequences with one new token. It
    takes what `pack_layer` and `pack_step` say, and the address of the means, float32 [sequences with one new token,
    Hkv, D]. It returns a status for `operators.check_status`.

    Raises:
        TopThetaBackendError: it cannot be had, and the backend is "native".
    """
    return loaded(dtype) if CPU_SELECTOR.runs_native(dtype) else None


def pack_layer(value_cache: Tensor, sums: Tensor, rows: int) -> bytes:
    """Pack what does not change from step to step. The tensors have to stay where they are.

    Args:
        value_cache: [blocks, Hkv, block_size, D], whose elements lie side by side.
        sums: float32 [blocks · block_size / rows, Hkv, D] or more, contiguous.
        rows: of a piece of a page.
    """
    blocks, heads, block_size, head_dim = value_cache.shape
    place = value_cache.data_ptr(), *value_cache.stride()
    return SUMS_OF_LAYER.pack(blocks, block_size, rows, heads, head_dim, *place, sums.data_ptr())


def pack_step(block_table: Tensor, seq_lens: Tensor, query_start_loc: Tensor | None, *, means: bool = True) -> bytes:
    """Pack what is the same in all layers of a step. The tensors have to stay where they are.

    Args:
        block_table: int32 [B, max_blocks], contiguous.
        seq_lens: int32 or int64 [B], contiguous.
        query_start_loc: int32 or int64 [B+1], contiguous, the first new token of every sequence, and their number;
            None: each has one.
        means: of sequences with one new token.
    """
    starts = (0, 0) if query_start_loc is None else (query_start_loc.data_ptr(), query_start_loc.dtype == torch.int64)
    lengths = seq_lens.data_ptr(), seq_lens.dtype == torch.int64
    batch, width = block_table.shape
    threads = thread_count(), RUN_IN_PARALLEL
    return WRITTEN_ROWS.pack(batch, width, width, block_table.data_ptr(), *lengths, *starts, means, *threads)
