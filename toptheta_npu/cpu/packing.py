"""The native form of `fallback.antiquant.quantise`, for the few new rows of a decode step: the same bits, one call."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from .backend import CPU_SELECTOR
from .build import ELEMENTS
from .dispatch_watch import is_watched, plain_keys
from .library import loaded

#: The fields of struct RowsToPack in source/packing.h.
_ROWS = struct.Struct("@P4q4q2Pq")
#: More are packed in PyTorch, which has all its threads for them.
_FEW_ROWS = 16
_MAX_HEAD_DIM = 512


def pack_rows(rows: Tensor, packed: Tensor, channels: Tensor | None) -> bool:
    """Round rows to int8. False: these are not for the native library, and nothing is written.

    Args:
        rows: [B, Hkv, n, D], with any strides.
        packed: int8 [B, Hkv, n, D and more], contiguous, written.
        channels: float32 [Hkv, D], contiguous, the scales of channels; None: each row has its own, which comes into its
            last 4 bytes.
    """
    dtype = rows.dtype
    if torch.compiler.is_compiling() or is_watched() or not (plain_keys(rows) and plain_keys(packed)):
        return False
    if rows.shape[2] > _FEW_ROWS or rows.shape[3] > _MAX_HEAD_DIM:
        return False
    if str(dtype).removeprefix("torch.") not in ELEMENTS or not CPU_SELECTOR.runs_native(dtype):
        return False
    if channels is not None and not (plain_keys(channels) and channels.is_contiguous()):
        return False
    scales = 0 if channels is None else channels.data_ptr()
    given = _ROWS.pack(
        rows.data_ptr(), *rows.shape, *rows.stride(), scales, packed.data_ptr(), packed.shape[-1]
    )  # fmt: skip
    loaded(dtype).toptheta_pack_rows(given)
    return True
