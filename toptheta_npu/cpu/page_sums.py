"""The native form of `vllm.page_sums`: one call makes the V sums that a step of a serving engine ends, and means.

It is in a library with the call of `repeated`, which makes them, too.
"""

from __future__ import annotations

import ctypes
import logging
import struct

import torch
from torch import Tensor

from ..errors import TopThetaBackendError
from . import library
from .backend import CPU_SELECTOR
from .build import SERVING_SOURCE
from .threads import thread_count

#: The fields of struct PageSumsOfLayer and of struct WrittenRows in source/page_sums.h.
LAYER, STEP = struct.Struct("@5qP4qP"), struct.Struct("@3qP" + 2 * "Pq" + "2qP")
_FAILED: set[torch.dtype] = set()
_logger = logging.getLogger("toptheta_npu")


def find(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Find the library for caches of a dtype where operators are native; load it if need be.

    Its ``toptheta_page_sums`` makes the sums that a step ends, then the means of its sequences with one new token. It
    takes what `pack_layer` and `pack_step` say, and the address of the means, float32 [sequences with one new token,
    Hkv, D]. It returns a status for `operators.check_status`.

    Raises:
        TopThetaBackendError: it cannot be had, and the backend is "native".
    """
    if not CPU_SELECTOR.runs_native(dtype) or dtype in _FAILED:
        return None
    try:
        return library.loaded_unit(SERVING_SOURCE, dtype, _declare)
    except TopThetaBackendError as error:
        if CPU_SELECTOR.backend == "native":
            raise
        _FAILED.add(dtype)
        _logger.warning("toptheta_npu makes its V sums in PyTorch: %s", error)
        return None


def pack_layer(value_cache: Tensor, sums: Tensor, rows: int) -> bytes:
    """Pack what does not change from step to step. The tensors have to stay where they are.

    Args:
        value_cache: [blocks, Hkv, block_size, D], whose elements lie side by side.
        sums: float32 [blocks · block_size / rows, Hkv, D] or more, contiguous.
        rows: of a piece of a page.
    """
    blocks, heads, block_size, head_dim = value_cache.shape
    place = value_cache.data_ptr(), *value_cache.stride()
    return LAYER.pack(blocks, block_size, rows, heads, head_dim, *place, sums.data_ptr())


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
    threads = thread_count(), library.RUN_IN_PARALLEL
    return STEP.pack(batch, width, width, block_table.data_ptr(), *lengths, *starts, means, *threads)


def _declare(found: ctypes.CDLL) -> None:
    size, sums = found.toptheta_size_of_page_sums, found.toptheta_page_sums
    size.restype = found.toptheta_size_of_decoding.restype = ctypes.c_int64
    library.check_size("page sums", LAYER.size + STEP.size, size())
    packed, address, strides = [ctypes.c_char_p] * 2, ctypes.c_void_p, [ctypes.c_int64] * 3
    sums.argtypes, sums.restype = [*packed, address], ctypes.c_int32
    decode = found.toptheta_decode_layer
    decode.argtypes, decode.restype = [*packed, address, *strides, address], ctypes.c_int32
