"""What an engine counts, and what it writes."""

from __future__ import annotations

import logging

import pytest
import torch

from toptheta_npu.vllm.metrics import LayerCounters, Metrics, Totals


def test_counts_of_a_layer_are_sums_over_its_rows() -> None:
    counters = LayerCounters(2, 1)
    lengths, aims = torch.tensor([10, 4, 0], dtype=torch.int32), torch.tensor([3, 0, 0])
    kept = torch.tensor([[3, 5], [4, 4], [0, 0]], dtype=torch.int32)
    counters.add(lengths, kept, torch.tensor([[6], [4], [0]], dtype=torch.int32), aims)
    assert counters.totals() == {
        "rows": 2, "elements": 28, "kept": 16, "available_value_rows": 14, "value_rows": 10,
        "sparse_aims": 6, "sparse_kept": 8,
    }  # fmt: skip


def test_reports_come_at_intervals_and_hold_what_was_added(caplog: pytest.LogCaptureFixture) -> None:
    now, exported = [0.0], []
    metrics = Metrics(10, exported.append, lambda: now[0])
    layer = metrics.layer(1, 1)
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        for _ in range(3):
            now[0] += 6
            layer.add(torch.tensor([8]), torch.tensor([[2]]), torch.tensor([[2]]), torch.tensor([2]))
            metrics.step(decode=1, prompt=4)
    assert [added.rows for added in exported] == [2]
    metrics.report()
    metrics.report()
    assert [added.rows for added in exported] == [2, 1]
    assert metrics.totals() == Totals(3, 24, 6, 24, 6, 6, 6, 3, 12, 0, 0)
    assert caplog.messages == [
        "Top-Theta: 2 decoded tokens kept 25.0% of their elements and read 25.0% of the V rows, k~/k 1.00; "
        "8 tokens of prompts and 0 with drafts, all dense"
    ]


def test_nothing_is_written_of_an_idle_engine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        Metrics(1).report()
    assert not caplog.messages
