"""The shim for vllm-ascend on a device: its steps run through the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.serving.ascend_engine import THETA, Served, save_table
from toptheta_npu import TopThetaNotImplementedError

PAGE = 128


def serve(folder: Path, **settings: Any) -> Served:
    return Served(save_table(folder), device="npu", dtype=torch.float16, block_size=PAGE, blocks=12, **settings)


def assert_right(out: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("vmc", [False, True])
def test_steps_run_through_the_kernel(tmp_path: Path, vmc: bool) -> None:
    """Prompts, a mixed step, and decode steps over the end of a page."""
    served = serve(tmp_path, vmc=vmc)
    for counts in ([126, 40], [1, 30], [1, 1, 5], *[[1, 1, 1]] * 3):
        for out, expected in served.step(counts, padded_tokens=2 if counts == [1, 30] else 0):
            assert_right(out, expected)
    assert [layer.impl.dense_tokens for layer in served.layers.values()] == [[166, 30, 5]] * 2


@pytest.mark.parametrize(("name", "side_by_side"), [("HND", False), ("NHD", True), ("HND", True)])
def test_every_layout_is_read_as_it_lies(
    tmp_path: Path, name: str, side_by_side: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", name)
    served = serve(tmp_path, side_by_side=side_by_side)
    for counts in ([126, 40], [1, 1], [1, 1]):
        for out, expected in served.step(counts):
            assert_right(out, expected)


def test_a_private_format_is_refused_before_a_layer_runs(tmp_path: Path) -> None:
    torch_npu = pytest.importorskip("torch_npu")
    served = serve(tmp_path)
    layer = next(iter(served.layers.values()))
    shape, dtype = layer.kv_cache[0].shape, layer.kv_cache[0].dtype
    private = torch_npu.empty_with_format(shape, dtype=dtype, device="npu", acl_format=29)
    if torch_npu.get_npu_format(private) != 29:
        pytest.skip("this device has no private formats")
    layer.kv_cache = (private, private)
    with pytest.raises(
        TopThetaNotImplementedError, match=r"^kv_cache: expected a base format .* format 29 \(29 is NZ\)"
    ):
        served.prepare([1])


#: Scores nearer to their thresholds than this may fall on either side: the kernel rounds q times the scales to float16.
ROUNDING = 2e-3


class Moved(Served):
    """What has to come out with thresholds a little higher and lower, too: [3, T, Hq, D]."""

    def expected(self, *step: Any) -> Tensor:
        found = []
        for self.theta in (THETA - ROUNDING, THETA, THETA + ROUNDING):
            found.append(super().expected(*step))
        return torch.stack(found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_over_int8_caches_run_through_the_kernel(tmp_path: Path, dtype: torch.dtype) -> None:
    """Prompts and drafts beside decode steps over the end of a page, with the scales of a checkpoint."""
    served = Moved(save_table(tmp_path), device="npu", dtype=dtype, block_size=PAGE, blocks=12, c8=True)
    for counts in ([126, 40], [1, 30], [1, 1, 5], *[[1, 1, 1]] * 3):
        for out, expected in served.step(counts, padded_tokens=2 if counts == [1, 30] else 0):
            tolerance = 2e-3 if dtype is torch.float16 else 2e-2
            off = ((out - expected).abs() - tolerance * expected.abs()).amax(-1)  # [3, T, Hq]
            assert off.amin(0).max() <= tolerance
            assert (off[1] <= tolerance).float().mean() > 0.9
    assert [layer.impl.dense_tokens for layer in served.layers.values()] == [[166, 30]] * 2
