"""Drafts in the shim for vllm-ascend: each token as it would be alone, with lengths that the host does not look at."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.serving.ascend_engine import HEAD_DIM, HEADS, KV_HEADS, LAYERS, Served, mode, ngrams, save_table
from tests.serving.ascend_parts import common_metadata
from tests.serving.test_ascend import assert_right, dense_tokens
from toptheta_npu import TopThetaBackendError, TopThetaNotImplementedError
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.vllm import ascend, ascend_drafts
from toptheta_npu.vllm.steps import Step, attend

DRAFTS = 3


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return save_table(tmp_path)


def serve(table: Path, drafts: int = DRAFTS, graphs: str = "NONE", **settings: Any) -> Served:
    compilation = SimpleNamespace(static_forward_context={}, cudagraph_mode=mode(graphs))
    config = {"speculative_config": ngrams(drafts), "compilation_config": compilation}
    return Served(table, config=config, **settings)


#: New tokens of every sequence, those of them that are rejected, and whether the host has heard of it in the next step.
SCHEDULE: list[tuple[list[int], list[int], bool]] = [
    ([30, 9], [0, 0], True),
    ([4, 1], [2, 0], True),
    ([2, 3, 40], [1, 2, 0], False),
    ([4, 4, 1], [3, 0, 0], False),
    ([1, 2, 4, 3], [0, 0, 1, 0], True),  # the last one is a prompt of three tokens
    *[([4, 1, 2, 4], [3, 0, 1, 0], False)] * 6,
    ([1, 1, 1, 1], [0, 0, 0, 0], True),
]


@pytest.mark.parametrize("c8", [False, True])
@pytest.mark.parametrize("vmc", [False, True])
@pytest.mark.parametrize("seen", [True, False])
def test_each_token_is_the_step_that_it_would_be_alone(
    table: Path, seen: bool, vmc: bool, c8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several numbers of drafts beside prompts and plain sequences, over ends of pages, and after rejections."""
    if not seen:  # as on a device
        monkeypatch.setattr("toptheta_npu.vllm.page_sums.are_seen", lambda tensor: False)
    served = serve(table, vmc=vmc, c8=c8, metrics=True)
    for counts, rejected, is_known in SCHEDULE:
        assert_right(served.step(counts, padded_tokens=2 if len(counts) == 3 else 0))
        served.reject(*rejected, is_known=is_known)
    assert dense_tokens(served) == ([[39, 40]] if c8 else [[39, 40, 3]]) * LAYERS
    totals = served.builder._engine.metrics.totals()
    drafted = sum(count for counts, _, _ in SCHEDULE[1:] for count in counts if 1 < count <= 1 + DRAFTS)
    assert (totals.draft_tokens, totals.thresholded_tokens) == (drafted, drafted - 3)
    assert totals.rows == LAYERS * totals.decode_tokens


def test_lengths_on_the_device_stay_there(table: Path) -> None:
    """Tensors on "meta" have no values: a step with other numbers of drafts runs in all parts of the path."""
    served = serve(table, vmc=True, device="cpu", metrics=True)
    served.step([40, 21, 30])
    impl = next(iter(served.layers.values())).impl
    keys, values, _ = impl._pages[1]
    on_meta = torch.device("meta")
    engine = Served(table, device="meta", vmc=True, metrics=True, config={"speculative_config": ngrams(DRAFTS)})
    rule = next(iter(engine.layers.values())).impl.rule
    step = Step.of(
        torch.tensor([0, 4, 5, 7]), torch.zeros(3, dtype=torch.int32, device=on_meta),
        torch.zeros(3, 8, dtype=torch.int32, device=on_meta), verify_tokens=4, goes_on=np.array([True] * 3),
    )  # fmt: skip
    pages = type(impl._pages[1])(keys.to(on_meta), values.to(on_meta), None)
    rule = dataclasses.replace(rule, page_sums=None).with_pages(pages)
    out = torch.empty(7, HEADS, HEAD_DIM, device=on_meta)
    attend(step, torch.empty(7, HEADS, HEAD_DIM, device=on_meta), pages.keys, pages.values, rule, out)
    assert step.drafts is not None
    assert (step.new.num_decoding, step.drafts.verified, step.drafts.most) == (7, 6, 4)
