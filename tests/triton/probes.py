"""Small kernels around functions of the kernels that tests look at."""

from __future__ import annotations

import triton
import triton.language as tl

from toptheta_npu.triton import kernel_parts, kernel_sampled


@triton.jit
def split(LENGTHS, COUNTS, KEYS, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Divide rows of LENGTHS keys as the kernels do."""
    at = tl.program_id(0)
    count, keys = kernel_parts.split_row(tl.load(LENGTHS + at), BLOCK)
    tl.store(COUNTS + at, count)
    tl.store(KEYS + at, keys)


@triton.jit
def sample(LENGTHS, PLACES, STAND_FOR, THERE, SLOTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Choose the keys of the samples of rows of LENGTHS keys as the kernel does."""
    at = tl.program_id(0)
    slot = tl.arange(0, SLOTS)
    place, stands_for, there = kernel_sampled._sampled_places(slot, tl.load(LENGTHS + at))
    tl.store(PLACES + at * SLOTS + slot, place)
    tl.store(STAND_FOR + at * SLOTS + slot, stands_for)
    tl.store(THERE + at * SLOTS + slot, there.to(tl.int32))
