"""The shim for vllm-ascend on a device: its steps run through the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.serving.ascend_engine import HEAD_DIM, HEADS, THETA, Served, ngrams, save_table
from tests.serving.ascend_parts import common_metadata
from toptheta_npu import TopThetaNotImplementedError
from toptheta_npu.vllm.ascend_drafts import is_capturing

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
    served = serve(tmp_path, side_by_side=side_by_side, config={"speculative_config": ngrams(3)})
    for counts in ([126, 40], [1, 1], [4, 2], [1, 1]):
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
    with pytest.raises(TopThetaNotImplementedError, match=r"^kv_cache: .* got the private format 29 \(29 is NZ\)"):
        served.prepare([1])


#: New tokens of every sequence, those of them that are rejected, and whether the host has heard of it in the next step.
DRAFTED: list[tuple[list[int], list[int], bool]] = [
    ([124, 40], [0, 0], True),
    ([4, 3], [2, 0], True),
    ([1, 2, 30], [0, 1, 0], False),
    ([5, 1, 2], [4, 0, 0], False),  # over the end of a page, and back
    ([5, 4, 1, 6], [3, 0, 0, 0], True),
    ([5, 5, 5, 5], [0, 4, 1, 2], False),
    ([1, 1, 1, 1], [0, 0, 0, 0], True),
]


class Unread(TorchDispatchMode):
    """Within it, nothing of a device is read by the host, and no shape depends on a value there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        of_device = any(isinstance(each, Tensor) and each.device.type == "npu" for each in args)
        to_host = isinstance(out, Tensor) and out.device.type == "cpu" and of_device
        name = func.overloadpacket.__name__
        assert not (of_device and (to_host or name in ("_local_scalar_dense", "nonzero"))), f"{name} reads a device"
        return out


@pytest.mark.parametrize("vmc", [False, True])
def test_drafts_are_verified_by_the_kernel(tmp_path: Path, vmc: bool) -> None:
    """Each token equals the step that it would be alone, beside prompts and plain sequences, after rejections, too."""
    served = serve(tmp_path, vmc=vmc, metrics=True, config={"speculative_config": ngrams(4)})
    for counts, rejected, is_known in DRAFTED:
        for out, expected in served.step(counts, padded_tokens=2 if len(counts) == 3 else 0):
            assert_right(out, expected)
        served.reject(*rejected, is_known=is_known)
    assert [layer.impl.dense_tokens for layer in served.layers.values()] == [[164, 30, 6]] * 2
    totals = served.builder._engine.metrics.totals()
    assert (totals.draft_tokens, totals.thresholded_tokens) == (45, 45)
    assert totals.decode_tokens == 45 + 7
    assert totals.rows == 2 * totals.decode_tokens


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
    """Prompts, drafts, plain sequences and dense rows that are few, with the scales of a checkpoint."""
    table, config = save_table(tmp_path), {"speculative_config": ngrams(4)}
    served = Moved(table, device="npu", dtype=dtype, block_size=PAGE, blocks=12, c8=True, config=config)
    for counts, rejected, is_known in DRAFTED:
        for out, expected in served.step(counts, padded_tokens=2 if len(counts) == 3 else 0):
            tolerance = 2e-3 if dtype is torch.float16 else 2e-2
            off = ((out - expected).abs() - tolerance * expected.abs()).amax(-1)  # [3, T, Hq]
            assert off.amin(0).max() <= tolerance
            assert (off[1] <= tolerance).float().mean() > 0.9
        served.reject(*rejected, is_known=is_known)
    assert [layer.impl.dense_tokens for layer in served.layers.values()] == [[164, 30]] * 2


def test_post_softmax_drafts_do_not_reach_the_kernel(tmp_path: Path) -> None:
    table, config = save_table(tmp_path, placement="post_softmax"), {"speculative_config": ngrams(3)}
    served = Served(table, device="npu", dtype=torch.float16, block_size=PAGE, vmc=False, config=config)
    served.step([126, 40])
    out, _ = served.step([1, 4])[0]
    assert out.isfinite().all()
    assert [layer.impl.dense_tokens for layer in served.layers.values()] == [[166, 4]] * 2


def test_nothing_of_a_step_with_drafts_is_read_by_the_host(tmp_path: Path) -> None:
    served = serve(tmp_path, vmc=True, metrics=True, config={"speculative_config": ngrams(4)})
    served.step([124, 40])
    lengths = torch.tensor([129, 41, 43], dtype=torch.int32)
    served.lengths[:3], served.table[:3, :2] = lengths.npu(), torch.tensor([[0, 1], [2, 3], [4, 5]]).npu()
    common = common_metadata([5, 1, 3], served.lengths[:3], served.table[:3], served.slots[:9], host_lengths=lengths)
    query, out = (torch.zeros(9, HEADS, HEAD_DIM, dtype=torch.float16, device="npu") for _ in range(2))
    with pytest.raises(AssertionError, match="_local_scalar_dense reads a device"), Unread():
        served.lengths[0].item()
    with Unread():
        metadata = served.builder.build(0, common)
        for layer in served.layers.values():
            layer.impl.forward_impl(query, None, None, layer.kv_cache, metadata, out)
    assert metadata.toptheta_step.drafts.verified == 8


def test_a_capture_is_noticed() -> None:
    """So that a step with prompts is refused in one; here, most operators of PyTorch cannot be captured."""
    assert not is_capturing()
    graph, stream = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.graph(graph, stream=stream):
        assert is_capturing()
    assert not is_capturing()
