"""Drafts in the shim for vllm-ascend: each token as it would be alone, with lengths that the host does not look at."""

from __future__ import annotations

import atexit
import logging
from functools import partial
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
from toptheta_npu.vllm import ascend_drafts
from toptheta_npu.vllm.drafts import DraftRows

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
        monkeypatch.setattr("toptheta_npu.vllm.page_sums.host_can_read", lambda tensor: False)
    served = serve(table, vmc=vmc, c8=c8, metrics=True)
    for counts, rejected, is_known in SCHEDULE:
        assert_right(served.step(counts, padded_tokens=2 if len(counts) == 3 else 0))
        served.reject(*rejected, is_known=is_known)
    assert dense_tokens(served) == ([[39, 40]] if c8 else [[39, 40, 3]]) * LAYERS
    totals = served.builder._engine.metrics.totals()
    drafted = sum(count for counts, _, _ in SCHEDULE[1:] for count in counts if 1 < count <= 1 + DRAFTS)
    assert (totals.draft_tokens, totals.thresholded_tokens) == (drafted, drafted - 3)
    assert totals.rows == LAYERS * totals.decode_tokens


def test_means_are_right_where_drafts_fill_pages(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toptheta_npu.vllm.page_sums.host_can_read", lambda tensor: False)
    served = serve(table, block_size=2, vmc=True)
    served.step([3, 4])
    for rejected in ((1, 3), (3, 0), (0, 2), (2, 1)):
        assert_right(served.step([4, 4]))
        served.reject(*rejected)


def test_verified_rows_of_an_int8_cache_are_not_computed_densely_first(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(table, c8=True)
    served.step([40, 21])
    monkeypatch.setattr("toptheta_npu.vllm.ascend_c8.attend_to_all", lambda *_: pytest.fail("dense rows"))
    assert_right(served.step([4, 2, 20]))


def test_padding_has_no_keys_and_no_tokens() -> None:
    lengths = torch.tensor([9, 0], dtype=torch.int32)
    rows = DraftRows.of(torch.tensor([0, 3, 6]), np.array([0, 1]), lengths)
    new = rows.read(lengths, torch.zeros(2, 1, dtype=torch.int32))
    assert new.decoding_lengths.tolist() == [7, 8, 9, 0, 0, 0]
    assert rows.counts.tolist() == [3, 0]


def test_lengths_on_the_device_stay_there(table: Path) -> None:
    """Tensors on "meta" have no values: whoever looks at one of a step with drafts fails."""
    served = serve(table, device="meta", metrics=True)
    atexit.unregister(served.builder._engine.metrics.report)  # it looks at counts
    common = common_metadata([4, 1, 2], served.lengths[:3], served.table[:3], served.slots[:7], host_lengths=LENGTHS)
    metadata = served.builder.build(0, common)
    for layer in served.layers.values():
        query, out = torch.empty(2, 7, HEADS, HEAD_DIM, device="meta")
        layer.impl.forward_impl(query, None, None, layer.kv_cache, metadata, out)
    step = metadata.toptheta_step
    assert (step.new.num_decoding, step.drafts.verified, step.drafts.most, len(step.several)) == (7, 6, 4, 0)


LENGTHS = torch.tensor([5, 1, 3], dtype=torch.int32)


def test_a_sequence_goes_on_by_what_the_host_knows(table: Path) -> None:
    """A prompt as short as drafts is none of them, and padding is nothing."""
    served = serve(table)
    tables = torch.zeros(4, 8, dtype=torch.int32)
    lengths = torch.tensor([4, 9, 3, 0], dtype=torch.int32)
    common = common_metadata([4, 4, 3], lengths, tables, served.slots[:11], padded_tokens=4)
    step = served.builder.build(0, common).toptheta_step
    assert (step.sequences.tolist(), step.several.tolist()) == ([1], [0, 2])
    metadata = SimpleNamespace(seq_lens_cpu=torch.empty(3, device="meta"))
    with pytest.raises(TopThetaBackendError, match="expected seq_lens_cpu on the host, got meta"):
        ascend_drafts.going_on(metadata, torch.tensor([0, 4]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("vmc", [False, True])
@pytest.mark.parametrize("c8", [False, True])
@torch._dynamo.config.patch(error_on_recompile=True)
def test_a_traced_step_of_drafts_serves_other_sequences(table: Path, vmc: bool, c8: bool) -> None:
    """As a captured one: each sequence has as many new tokens, some of which are rejected, and some have none."""
    torch._dynamo.reset()
    served = serve(table, graphs="FULL_DECODE_ONLY", vmc=vmc, c8=c8)
    served.step([40, 15, 30, 2])
    layer, tokens = next(iter(served.layers.values())), 4 * (1 + DRAFTS)
    query, out = torch.zeros(tokens, HEADS, HEAD_DIM), torch.zeros(tokens, HEADS, HEAD_DIM)
    new_rows = torch.zeros(2, tokens, KV_HEADS, HEAD_DIM)
    lengths = torch.full((4,), 1 + DRAFTS, dtype=torch.int32)  # as vllm-ascend has them at a capture
    common = common_metadata(
        [1 + DRAFTS] * 4, served.lengths, served.table, served.slots[:tokens], host_lengths=lengths
    )
    metadata = served.builder.build_for_cudagraph_capture(common)

    @torch.compile(backend="eager", fullgraph=True, dynamic=False)
    def attend() -> None:
        if c8:
            layer.impl.forward(layer, query, *new_rows, layer.kv_cache, metadata, out)
        else:
            layer.impl.forward_impl(query, *new_rows, layer.kv_cache, metadata, out)

    for step in range(18):
        counts = [1 + DRAFTS] * (2 + step % 3)
        taken = sum(counts)
        served.prepare(counts)
        new = [served.draw(taken, heads) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        query[:taken], new_rows[0, :taken], new_rows[1, :taken] = new
        served.note(counts, 0, *new[1:])
        if not c8:
            layer.impl.reshape_and_cache(*new[1:], layer.kv_cache, served.slots[:tokens])
        attend()
        torch.testing.assert_close(out[:taken], served.expected(0, counts, new[0]), atol=2e-6, rtol=1e-5)
        assert (out[taken:] == 0).all()
        served.reject(*((step + index) % (1 + DRAFTS) for index in range(len(counts))))


@pytest.mark.parametrize(
    ("counts", "past", "says_so", "refused"),
    [
        ([4, 4], 0, True, False), ([1, 1], 0, True, False), ([1, 1], 0, False, False),
        ([4, 4], 0, False, True), ([4, 2], 0, True, True), ([4, 2], 9, True, True), ([4, 4], 9, False, True),
    ],
)  # fmt: skip
def test_a_step_that_could_not_be_replayed_is_not_captured(
    table: Path, counts: list[int], past: int, says_so: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, other numbers of drafts, or an engine that does not say that it captures."""
    served = serve(table, graphs="FULL_DECODE_ONLY")
    served.step([40, 40])
    tables = served.table[:2]
    common = common_metadata(counts, torch.tensor(counts).int() + past, tables, served.slots[: sum(counts)])
    build = served.builder.build_for_cudagraph_capture if says_so else partial(served.builder.build, 0)
    metadata, layer, rows = build(common), next(iter(served.layers.values())), served.draw(sum(counts), HEADS)
    monkeypatch.setattr("toptheta_npu.vllm.ascend.is_capturing", lambda: True)
    if refused:
        with pytest.raises(TopThetaBackendError, match="expected as many tokens of each sequence in a captured step"):
            layer.impl.forward_impl(rows, rows, rows, layer.kv_cache, metadata, rows)
    else:
        layer.impl.forward_impl(rows, rows, rows, layer.kv_cache, metadata, rows)


def test_post_softmax_drafts_stay_dense_and_the_log_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        served = serve(save_table(tmp_path, placement="post_softmax"), vmc=False, metrics=True)
    [line] = [message for message in caplog.messages if "decode by the thresholds" in message]
    assert line.endswith(
        "dense: prompts (prefill=dense), drafts (an NPU verifies no drafts post-softmax; use thresholds for "
        "placement='pre_softmax')"
    )
    assert_right(served.step([30, 9]))
    served.step([1, 4])
    assert dense_tokens(served) == [[39, 4]] * LAYERS
    totals = served.builder._engine.metrics.totals()
    assert (totals.draft_tokens, totals.thresholded_tokens, totals.decode_tokens) == (4, 0, 1)
    with pytest.raises(
        TopThetaNotImplementedError, match=r"^cudagraph_mode: .* drafts stay dense: an NPU verifies no drafts post-s"
    ):
        serve(tmp_path / "model.theta", graphs="FULL_DECODE_ONLY", vmc=False)


@pytest.mark.parametrize(("heads", "most"), [(256, 16), (512, 8), (1024, 4)])
def test_many_heads_have_fewer_tokens_verified(table: Path, heads: int, most: int) -> None:
    engine = serve(table, drafts=15).builder._engine
    ascend_drafts.limit_drafts(engine, heads)
    assert engine.verify_tokens == most
    why = None if most == 16 else "an NPU takes 4096 query heads times tokens"
    assert engine.why_dense_drafts == why


def test_rows_too_far_apart_for_several_tokens_are_refused_by_name(table: Path) -> None:
    for served in (serve(table), Served(table)):
        layer = next(iter(served.layers.values()))
        strides = (16 * 65536, 65536, HEAD_DIM, 1)
        layer.kv_cache = (torch.empty_strided((4, 16, KV_HEADS, HEAD_DIM), strides, device="meta"),) * 2
        if served.builder._engine.verify_tokens == 1:
            served.prepare([1])
            continue
        with pytest.raises(
            TopThetaNotImplementedError, match=r"^kv_cache: expected K rows at most 65535 .*layers\.0.*, got 65536"
        ):
            served.prepare([1])
