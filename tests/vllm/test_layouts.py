"""The cache as vLLM's own kernel writes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import _custom_ops as ops

from tests.serving.test_steps import thresholds
from toptheta_npu.errors import TopThetaNotImplementedError
from toptheta_npu.vllm.cpu import Builder, Impl
from toptheta_npu.vllm.layers import LayerGroup, LayerRule
from toptheta_npu.vllm.layouts import Layout, view_pages

HEADS, ROWS, BLOCKS = 2, 32, 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("isa", "dim"), [("vec", 64), ("vec16", 80)])
def test_what_vllms_kernel_has_written_is_viewed(isa: str, dim: int, dtype: torch.dtype) -> None:
    cache = torch.full((BLOCKS, HEADS, ROWS, 2 * dim), torch.nan, dtype=dtype)
    keys, values = torch.randn(2, BLOCKS * ROWS, HEADS, dim).to(dtype).unbind()
    slots = torch.randperm(BLOCKS * ROWS)
    halves = cache.view(BLOCKS, HEADS, 2 * ROWS, dim).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(keys, values, *halves, slots, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto")
    pages = view_pages(cache, Layout.COLUMN_KEYS, HEADS, dim)
    for viewed, written in zip(pages[:2], (keys, values), strict=True):
        assert torch.equal(viewed[slots // ROWS, :, slots % ROWS], written)


def test_a_cache_that_is_not_read_is_refused_when_the_first_step_is_prepared() -> None:
    impl: Any = object.__new__(Impl)
    impl.num_kv_heads, impl.head_size, impl._viewed = HEADS, 64, None
    impl.rule = LayerRule(0, LayerGroup(thresholds(), [0]), HEADS, 0.125)
    builder: Any = object.__new__(Builder)
    builder._layers = {"layer": SimpleNamespace(impl=impl, kv_cache=torch.zeros(BLOCKS, HEADS, ROWS, 128))}
    builder._bind()
    builder._layers["layer"].kv_cache = torch.zeros(BLOCKS, ROWS, HEADS, 128).transpose(1, 2)
    with pytest.raises(TopThetaNotImplementedError, match=r"^kv_cache: expected keys by columns before values by rows"):
        builder._bind()
