"""Small kernels around functions of the kernels that tests look at."""

from __future__ import annotations

import triton
import triton.language as tl

from toptheta_npu.triton import kernel


@triton.jit
def split(LENGTHS, COUNTS, KEYS, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Divide rows of LENGTHS keys as the kernels do."""
    at = tl.program_id(0)
    count, keys = kernel._splits(tl.load(LENGTHS + at), BLOCK)
    tl.store(COUNTS + at, count)
    tl.store(KEYS + at, keys)
