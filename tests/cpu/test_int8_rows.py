"""Rows of an int8 cache that the native form writes, against its form in PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.cpu.test_page_sums import BLOCK_SIZE, DTYPES
from tests.tiers import only
from toptheta_npu import use_backend
from toptheta_npu.vllm.int8_pages import row_bytes, view_int8_pages, write_rows


@pytest.mark.usefixtures("each_level")
@pytest.mark.parametrize("dtype", only({torch.bfloat16}, DTYPES))
def test_the_native_form_writes_the_same_bits(dtype: torch.dtype) -> None:
    for head_dim in (16, 32, 80, 128):
        heads, blocks = 3, 4
        wide = torch.randn(23, heads + 1, 2 * head_dim).to(dtype) * torch.logspace(-3, 3, 23)[:, None, None].to(dtype)
        wide[3], wide[5, 1, 2], wide[6, 0, -1] = 0, torch.nan, torch.nan
        wide[7, :2, : head_dim // 2] = 0.5  # ties
        key, value = wide[:, 1:, :head_dim], wide[:, 1:, head_dim:]
        slots = torch.randperm(blocks * BLOCK_SIZE)[:21]
        slots[4] = -1
        found = []
        for backend in ("native", "fallback"):
            cache = view_int8_pages(
                torch.zeros(blocks, heads, BLOCK_SIZE, row_bytes(head_dim), dtype=torch.int8), heads, head_dim
            )
            with use_backend(backend, device="cpu"):  # type: ignore[arg-type]
                write_rows(cache, key, value, slots)
            right = cache.scales.isfinite()[..., None]
            found.append((cache.scales, cache.numbers.where(right, torch.zeros_like(cache.numbers))))
        for native, plain in zip(*found, strict=True):
            torch.testing.assert_close(native, plain, atol=0, rtol=0, equal_nan=True)
        assert found[0][1].count_nonzero() > 0
