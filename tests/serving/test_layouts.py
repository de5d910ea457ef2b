"""Each layout of an engine's cache against contiguous pages of the same keys and values; others are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import toptheta_npu
from tests.serving.cache_layouts import ENGINES, storages
from tests.serving.paged_engine import rebuild
from tests.serving.test_steps import DIM, KV_HEADS, Engine, make_engine, thresholds
from toptheta_npu import TopThetaNotImplementedError
from toptheta_npu.vllm.layers import LayerGroup, LayerRule
from toptheta_npu.vllm.layouts import Layout, Pages, check_kernel_reads, view_pages
from toptheta_npu.vllm.steps import attend

#: Blocks, heads, rows of a page and head_dim; equal numbers among them must not be mixed up.
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2, 3, 4, 16]))


@pytest.mark.parametrize("name", ENGINES)
@given(shape=SHAPES, dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
def test_pages_are_the_engines_memory(name: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    count = torch.Size(shape).numel()
    keys, values = torch.arange(2 * count).to(dtype).view(2, *shape).unbind()
    layout, lay_out = ENGINES[name]
    cache = lay_out(keys, values)
    pages = view_pages(cache, layout, shape[1], shape[3])
    assert torch.equal(pages.keys, keys)
    assert torch.equal(pages.values, values)
    assert storages(pages[:2]) == storages(cache)


def results(engine: Engine, pages: Pages) -> tuple[Tensor, Tensor]:
    """All rows of a step by thresholds, prompts too, and the V sums that it leaves."""
    group = LayerGroup(thresholds(), [0])
    rule = LayerRule(0, group, KV_HEADS, DIM**-0.5, prefill="thresholded", vmc=True).with_pages(pages)
    assert rule.page_sums is not None
    counts = engine.step.query_start_loc.diff()
    rebuild(rule.page_sums, pages.values, engine.step.block_table, engine.step.seq_lens - counts)
    query = engine.query.to(pages.keys.dtype)
    out = torch.full_like(query, torch.nan)
    attend(engine.step, query, *pages[:2], rule, out)
    return out, rule.page_sums._sums


#: New tokens and those before: decode rows, chunks over the end of a page, a prompt, and a sequence that waits.
STEPS = {"mixed": ([1, 5, 0, 1, 20, 1, 33], [30, 3, 4, 47, 13, 0, 0]), "decode": ([1, 1, 1], [15, 32, 63])}


@pytest.mark.parametrize("backend", ["native", "fallback"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("counts", STEPS)
def test_a_step_gives_what_it_gives_with_contiguous_pages(counts: str, dtype: torch.dtype, backend: str) -> None:
    """Decode rows with V means, prompts by thresholds, which gather their rows, and V sums: to the last bit.

    But for keys by columns, whose scores are added up in another order.
    """
    engine = make_engine(*STEPS[counts], 0, False)
    contiguous = Pages(engine.key_cache.to(dtype), engine.value_cache.to(dtype))
    with toptheta_npu.use_backend(backend, device="cpu"):
        expected, expected_sums = results(engine, contiguous)
        assert expected.isfinite().all()
        for layout, lay_out in ENGINES.values():
            out, sums = results(engine, view_pages(lay_out(*contiguous[:2]), layout, KV_HEADS, DIM))
            if layout is Layout.COLUMN_KEYS:
                torch.testing.assert_close(out, expected)
            else:
                assert torch.equal(out, expected), layout
            assert torch.equal(sums, expected_sums), layout


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float16)


SPLIT = "K and V apart, each [blocks, block_size, Hkv, D] with Hkv 2 and D 64, got "
#: Hkv is 2, D is 64.
REFUSED: dict[str, tuple[Layout, Any, str]] = {
    "NZ tiles": (
        Layout.SPLIT, (half(3, 2, 2, 128, 32),) * 2,
        f"kv_cache: expected {SPLIT}[3, 2, 2, 128, 32] of torch.float16 and [3, 2, 2, 128, 32] of torch.float16; serve "
        "with a cache in half precision that is not quantised (kv_cache_dtype='auto'), by a version of the engine",
    ),
    "NZ of int8 under a plain shape": (
        Layout.SPLIT, (half(3, 128, 2, 64).to(torch.int8),) * 2, f"{SPLIT}[3, 128, 2, 64] of torch.int8",
    ),
    "scales beside the cache": (
        Layout.SPLIT, (half(3, 128, 2, 64),) * 4, "kv_cache: expected two tensors, of K and of V (K and V apart",
    ),
    "heads first where rows first was said": (Layout.SPLIT, (half(3, 2, 128, 64),) * 2, f"{SPLIT}[3, 2, 128, 64]"),
    "values of another width": (
        Layout.SPLIT, (half(3, 128, 2, 64), half(3, 128, 2, 32)), "and [3, 128, 2, 32] of torch.float16",
    ),
    "values of other pages": (
        Layout.SPLIT, (half(3, 128, 2, 64), half(3, 64, 2, 64)), "and [3, 64, 2, 64] of torch.float16",
    ),
    "values of another dtype": (
        Layout.SPLIT, (half(3, 128, 2, 64), half(3, 128, 2, 64).float()), "and [3, 128, 2, 64] of torch.float32",
    ),
    "rows of a page apart": (
        Layout.COLUMN_KEYS, half(3, 32, 2, 128).transpose(1, 2),
        "without gaps in a page of a head, got [3, 2, 32, 128] with strides [8192, 128, 256, 1]; unset VLLM_KV_CACHE_L",
    ),
    "no cache": (Layout.SPLIT, None, "(K and V apart, each [blocks, block_size, Hkv, D]), got none; serve with"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused(case: str) -> None:
    layout, cache, message = REFUSED[case]
    with pytest.raises(TopThetaNotImplementedError, match=re.escape(message)):
        view_pages(cache, layout, 2, 64)


def test_a_private_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toptheta_npu.vllm.layouts._format", lambda part: 29)
    with pytest.raises(TopThetaNotImplementedError, match=r"got the private format 29 \(29 is NZ"):
        view_pages((half(3, 128, 2, 64),) * 2, Layout.SPLIT, 2, 64)


@pytest.mark.parametrize("name", ENGINES)
def test_the_kernel_steps_through_all_layouts_but_keys_by_columns(name: str) -> None:
    keys, values = torch.randn(2, 3, 2, 128, 64).half().unbind()
    layout, lay_out = ENGINES[name]
    pages = view_pages(lay_out(keys, values), layout, 2, 64)
    if layout is not Layout.COLUMN_KEYS:
        check_kernel_reads(pages)
        return
    message = "kv_cache (keys): expected elements of a row side by side, and strides that are multiples of 16 on an NPU"
    with pytest.raises(TopThetaNotImplementedError, match=re.escape(message)):
        check_kernel_reads(pages)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (
            torch.zeros(3, 2, 128, 64),
            "(keys): expected float16 or bfloat16 on an NPU, read as they lie, got torch.float32",
        ),
        (
            half(3, 2, 40, 64),
            "expected pages of a multiple of 16 rows up to 512 on an NPU, read as they lie, got 40; set",
        ),
        (half(3, 2, 1024, 64), "rows up to 512 on an NPU, read as they lie, got 1024; set block_size=128"),
        (
            half(3, 2, 128, 72)[..., :64],
            "multiples of 16 on an NPU, read as they lie, got strides [18432, 9216, 72, 1]",
        ),
    ],
)
def test_what_the_kernel_would_need_copied_is_refused(cache: Tensor, message: str) -> None:
    with pytest.raises(TopThetaNotImplementedError, match=re.escape(message)):
        check_kernel_reads(Pages(cache, cache))
