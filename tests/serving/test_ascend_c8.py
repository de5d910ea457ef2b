"""int8 caches with a checkpoint's C8 scales: rows that the shim writes itself, beside the parts of vllm-ascend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.serving.ascend_engine import HEAD_DIM, KV_HEADS, LAYERS, Served, save_table
from tests.serving.test_ascend import assert_right, dense_tokens
from toptheta_npu import TopThetaBackendError, TopThetaNotImplementedError, TopThetaValueError
from toptheta_npu.vllm import ascend_c8
from toptheta_npu.vllm.ascend_c8 import FEW_TOKENS, C8Impl, take_over


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return save_table(tmp_path)


@pytest.mark.parametrize(("name", "side_by_side", "vmc"), [
    ("NHD", False, True), ("NHD", True, False), ("HND", False, False), ("HND", True, True)
])  # fmt: skip
def test_steps_are_those_of_rounded_rows(
    table: Path, name: str, side_by_side: bool, vmc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, chunks, drafts and decode steps over the end of a page; padding is 0."""
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", name)
    served = Served(table, c8=True, vmc=vmc, side_by_side=side_by_side)
    for counts in ([40, 9], [1, 17, 30], [3, 1, 1, 20], *[[1, 1, 1, 1]] * 18):
        assert_right(served.step(counts, padded_tokens=2 if counts[-1] == 1 else 0))
    assert dense_tokens(served) == [[49, 47, 20]] * LAYERS  # drafts do not come there
    assert all(isinstance(layer.impl, C8Impl) for layer in served.layers.values())


def test_rows_of_padding_are_not_written(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where metadata has places for these, too: as vllm-ascend's own C8 layers, ours cut them off."""
    served = Served(table, c8=True, dense_layers=[1])
    build = served.builder.build

    def build_with_all_slots(prefix: int, common: Any) -> Any:
        metadata = build(prefix, common)
        metadata.slot_mapping = served.slots[: int(common.query_start_loc_cpu[-1])]
        return metadata

    monkeypatch.setattr(served.builder, "build", build_with_all_slots)
    for counts in ([40, 9], [1, 17], [1, 1]):
        assert_right(served.step(counts, padded_tokens=3))


def test_rounding_is_seen(table: Path) -> None:
    """Else the tests here would prove nothing."""
    served, plain = Served(table, c8=True), Served(table)
    for engine in (served, plain):
        engine.step([100])
    ((rounded, _), _), ((exact, _), _) = served.step([1]), plain.step([1])
    assert (rounded - exact).abs().max() > 1e-2


def test_no_step_that_decodes_multiplies_the_cache_out(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(table, c8=True, dense_layers=[1])
    assert_right(served.step([40, 21]))
    monkeypatch.setattr(ascend_c8, "dequantise_pages", lambda *_: pytest.fail("pages were multiplied out"))
    for counts in ([1, 1], [FEW_TOKENS, 1], [2, 3]):
        assert_right(served.step(counts))


def test_thresholded_prompts_follow_the_thresholds(table: Path) -> None:
    served = Served(table, c8=True, prefill="thresholded")
    assert all(out.isfinite().all() for out, _ in served.step([40, 9]))
    assert_right(served.step([1, 1]))
    assert dense_tokens(served) == [[], []]


def test_each_rank_takes_the_scales_of_its_heads(table: Path) -> None:
    for rank in range(2):
        served = Served(table, c8=True)
        layer = next(iter(served.layers.values()))
        layer.impl.__class__ = type(ascend_c8.THEIR_IMPL, (type(layer.impl),), {})
        scale = torch.arange(2.0 * KV_HEADS * HEAD_DIM)
        layer.k_cache_scale.data = layer.v_cache_scale.data = scale
        take_over({"layer": layer}, type(layer.impl), rank, 2)
        key_scale, value_scale, *_ = layer.impl.antiquant
        assert torch.equal(key_scale, scale.view(2, KV_HEADS, HEAD_DIM)[rank])
        assert torch.equal(value_scale, key_scale)


@pytest.mark.parametrize(("name", "values", "error", "message"), [
    ("k_cache_offset", torch.full((KV_HEADS * HEAD_DIM,), 3.0), TopThetaNotImplementedError,
     "k_cache_offset: expected 0 in layer: int8 caches are symmetric, got up to 3; quantise"),
    ("v_cache_scale", torch.ones(33), TopThetaValueError,
     "v_cache_scale: expected a scale for each of 32 channels of the KV heads of layer, got 33; use"),
])  # fmt: skip
def test_scales_that_do_not_fit_are_refused_by_name(
    table: Path, name: str, values: torch.Tensor, error: type[Exception], message: str
) -> None:
    layer = next(iter(Served(table, c8=True).layers.values()))
    layer.impl.__class__ = type(ascend_c8.THEIR_IMPL, (type(layer.impl),), {})
    getattr(layer, name).data = values
    with pytest.raises(error, match=f"^{message}"):
        take_over({"layer": layer}, type(layer.impl), 0, 1)


def test_scales_of_other_names_are_told(table: Path) -> None:
    layer = next(iter(Served(table, c8=True).layers.values()))
    layer.impl.__class__ = type(ascend_c8.THEIR_IMPL, (type(layer.impl),), {})
    del layer.v_cache_scale
    with pytest.raises(
        TopThetaBackendError, match=r"a version that gives layer v_cache_scale, got none; install .* or 0\.25\.1rc1"
    ):
        take_over({"layer": layer}, type(layer.impl), 0, 1)


def test_a_sliding_window_over_an_int8_cache_is_refused_by_name(table: Path) -> None:
    with pytest.raises(TopThetaNotImplementedError, match=r"^sliding_window: expected none in .*\.0\."):
        Served(table, c8=True, windows=[0])


def test_its_own_layout_is_refused_by_name(table: Path) -> None:
    served = Served(table, c8=True)
    layer = next(iter(served.layers.values()))
    layer.kv_cache = tuple(torch.zeros(64, KV_HEADS, 1, 16, 32, dtype=torch.int8) for _ in range(2))
    with pytest.raises(TopThetaNotImplementedError, match=r"^kv_cache: .* got \[64, 2, 1, 16, 32\] of torch.int8"):
        served.prepare([1])
