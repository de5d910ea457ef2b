"""The native form of `fallback.antiquant.quantise` for new rows of a cache: the same bits, one call."""

from __future__ import annotations

import torch
from torch import Tensor

from .backend import CPU_SELECTOR
from .build import ELEMENTS
from .dispatch_watch import is_watched, plain_keys
from .library import ROWS_TO_ROUND, loaded
from .operators import check_status

#: More are packed in PyTorch, which has all its threads for them.
_FEW_ROWS = 16
_MAX_HEAD_DIM = 512
#: Of `ROWS_TO_ROUND`: rows have no scales of their own.
_NO_SCALES = (0, 0, 0, 0)


def pack_rows(rows: Tensor, packed: Tensor, channels: Tensor | None) -> bool:
    """Round rows to int8. False: these are not for the native library, and nothing is written.

    Args:
        rows: [B, Hkv, n, D], with any strides.
        packed: int8 [B, Hkv, n, D and more], contiguous, written.
        channels: float32 [Hkv, D], contiguous, the scales of channels; None: each row has its own, which comes into its
            last 4 bytes.
    """
    if torch.compiler.is_compiling() or is_watched() or not (plain_keys(rows) and plain_keys(packed)):
        return False
    if rows.shape[2] > _FEW_ROWS or not _is_taken(rows):
        return False
    if channels is not None:
        if not (plain_keys(channels) and channels.is_contiguous()):
            return False
        return _round(rows, packed, channels.data_ptr(), _NO_SCALES)
    size = torch.float32.itemsize
    scale_at = packed.shape[3] - size
    if scale_at > rows.shape[3]:
        packed[..., rows.shape[3] : scale_at] = 0
    sequence, head, row, _ = packed.stride()
    scales = packed.data_ptr() + scale_at, sequence // size, head // size, row // size
    return _round(rows, packed, 0, scales)


def _is_taken(rows: Tensor) -> bool:
    dtype, head_dim = rows.dtype, rows.shape[-1]
    is_known = str(dtype).removeprefix("torch.") in ELEMENTS and head_dim <= _MAX_HEAD_DIM
    return is_known and CPU_SELECTOR.runs_native(dtype)


def _round(rows: Tensor, numbers: Tensor, channels: int, scales: tuple[int, ...]) -> bool:
    given = ROWS_TO_ROUND.pack(
        rows.data_ptr(), *rows.shape, *rows.stride(), channels, numbers.data_ptr(), *numbers.stride()[:3], *scales,
    )  # fmt: skip
    return check_status(loaded(rows.dtype).toptheta_round_rows(given))
