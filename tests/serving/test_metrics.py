"""What an engine counts, and what it writes."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from toptheta_npu.vllm.metrics import LayerCounters, Metrics, Totals


def test_counts_of_a_layer_are_sums_over_its_rows() -> None:
    counters = LayerCounters(2, 1)
    lengths = torch.tensor([10, 4, 0], dtype=torch.int32)
    kept = torch.tensor([[3, 5], [4, 4], [0, 0]], dtype=torch.int32)
    counters.add(lengths, kept, torch.tensor([[6], [4], [0]], dtype=torch.int32), aims_of)
    assert counters.totals() == {
        "rows": 2, "elements": 28, "kept": 16, "available_value_rows": 14, "value_rows": 10,
        "sparse_aims": 6, "sparse_kept": 8,
    }  # fmt: skip


def test_steps_that_wait_are_counted_as_they_were_whatever_their_number() -> None:
    """An engine writes the lengths of the next step into the same tensor."""
    counters, lengths = LayerCounters(1, 1), torch.tensor([0, 0])
    for step in range(1, 150):
        lengths[:] = torch.tensor([step, 3])
        counters.add(lengths, torch.tensor([[1], [3]]), torch.tensor([[1], [3]]), aims_of)
        if step in (1, 64, 100, 149):
            totals = counters.totals()
            assert totals["elements"] == step * (step + 1) // 2 + 3 * step
            assert (totals["rows"], totals["kept"]) == (2 * step, 4 * step)
            assert totals["sparse_aims"] == 3 * max(step - 4, 0)


def aims_of(lengths: Tensor) -> Tensor:
    """Rows of up to 4 keys are dense, others aim at 3."""
    return 3 * (lengths > 4)


def test_reports_come_at_intervals_and_hold_what_was_added(caplog: pytest.LogCaptureFixture) -> None:
    now, exported = [0.0], []
    metrics = Metrics(10, exported.append, lambda: now[0])
    layer = metrics.layer(1, 1)
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        for _ in range(3):
            now[0] += 6
            layer.add(
                torch.tensor([8]), torch.tensor([[2]]), torch.tensor([[2]]), lambda lengths: torch.full_like(lengths, 2)
            )
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
