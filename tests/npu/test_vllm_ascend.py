"""The shim for vllm-ascend on a device: its steps run through the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.serving.ascend_engine import Served, save_table

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
