"""What an engine counts, and what it writes."""

from __future__ import annotations

import logging
import re
import sys
import threading
from dataclasses import fields
from queue import Queue
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from toptheta_npu.assets import load_tiny_llama_thresholds
from toptheta_npu.vllm import metrics as metrics_module
from toptheta_npu.vllm.layers import LayerGroup, LayerRule, of_heads
from toptheta_npu.vllm.metrics import Aims, Counters, Metrics, Totals, prometheus_export


def test_counts_of_a_layer_are_sums_over_its_rows() -> None:
    counters = Counters(1, 2, 1, aims_of)
    lengths = torch.tensor([10, 4, 0], dtype=torch.int32)
    kept = torch.tensor([[3, 5], [4, 4], [0, 0]], dtype=torch.int32)
    counters.add(lengths, kept[None], torch.tensor([[[6], [4], [0]]], dtype=torch.int32))
    assert counters.totals() == {
        "rows": 2, "elements": 28, "kept": 16, "available_value_rows": 14, "value_rows": 10,
        "sparse_aims": 6, "sparse_kept": 8,
    }  # fmt: skip


def test_layers_of_a_group_are_counted_together() -> None:
    counters = Counters(2, 1, 1, lambda lengths: torch.cat([aims_of(lengths), 2 * aims_of(lengths)]))
    for _ in range(2):
        kept = torch.tensor([[[3], [2]], [[6], [2]]])
        counters.add(torch.tensor([10, 4]), kept, torch.tensor([[[4], [2]], [[7], [2]]]))
    assert counters.totals() == {
        "rows": 8, "elements": 56, "kept": 26, "available_value_rows": 56, "value_rows": 30,
        "sparse_aims": 18, "sparse_kept": 18,
    }  # fmt: skip


def test_steps_that_wait_are_counted_as_they_were_whatever_their_number() -> None:
    """An engine writes the lengths of the next step into the same tensor."""
    counters, lengths = Counters(1, 1, 1, aims_of), torch.tensor([0, 0])
    group = LayerGroup(load_tiny_llama_thresholds("pre_softmax").at(64), [0], counters=counters)
    for step in range(1, 150):
        lengths[:] = torch.tensor([step, 3])
        looked_up = group.look_up(lengths)
        counters.add(looked_up.lengths, torch.tensor([[[1], [3]]]), torch.tensor([[[1], [3]]]))
        if step in (1, 64, 100, 149):
            totals = counters.totals()
            assert totals["elements"] == step * (step + 1) // 2 + 3 * step
            assert (totals["rows"], totals["kept"]) == (2 * step, 4 * step)
            assert totals["sparse_aims"] == 3 * max(step - 4, 0)


def aims_of(lengths: Tensor) -> Tensor:
    """Rows of up to 4 keys are dense, others aim at 3."""
    return 3 * (lengths > 4)[None]


def test_a_rank_has_the_thresholds_of_its_heads_and_counts_no_dense_rows() -> None:
    whole = load_tiny_llama_thresholds("pre_softmax").at(64)
    part = of_heads(whole, slice(4, 8))
    assert torch.equal(part.theta[5], whole.theta[5][:, 4:])
    lengths = torch.tensor([10, 64, 65, 600])
    assert Aims(part, [0, 5])(lengths).tolist() == [[0, 0, 0, 512], [0, 0, 64, 64]]
    group = LayerGroup(part, [5])
    assert torch.equal(LayerRule(5, group, 1, 1.0).group.look_up(lengths).theta[5], part.rows(5, lengths))


def make_counters(device: str = "cpu") -> Counters:
    """Of one layer with one head, whose rows aim at 2."""
    return Counters(1, 1, 1, lambda lengths: torch.full((1, len(lengths)), 2), device)


def add_row(counters: Counters) -> None:
    """A row of 8 keys that keeps 2 and aims at 2."""
    counters.add(torch.tensor([8]), torch.tensor([[[2]]]), torch.tensor([[[2]]]))


def test_lines_come_at_intervals_and_hold_what_was_added(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    metrics = Metrics(10, clock=lambda: now[0])
    layer = metrics.add_group(make_counters())
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        for _ in range(3):
            now[0] += 6
            add_row(layer)
            metrics.step(decode=1, prompt=4)
    assert caplog.messages == [
        "Top-Theta: 2 decoded tokens kept 25.0% of their elements and read 25.0% of the V rows, k~/k 1.00; "
        "8 tokens of prompts and 0 with drafts, all dense"
    ]
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        metrics.report()
        metrics.report()
    assert [message.partition(" decoded")[0] for message in caplog.messages] == ["Top-Theta: 2", "Top-Theta: 1"]
    assert metrics.totals() == Totals(3, 24, 6, 24, 6, 6, 6, 3, 12, 0, 0, 0)


@pytest.mark.parametrize(
    ("kept", "told"),
    [(100, None), (400, None), (90, "0.45, outside of 0.5 to 2: .* less is read"), (420, "2.10, .* more is read")],
)
def test_a_warning_comes_when_rows_keep_far_from_what_they_aim_at(
    kept: int, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(10)
    counters = metrics.add_group(Counters(1, 1, 1, lambda lengths: torch.full((1, len(lengths), 1), 200)))
    with caplog.at_level(logging.WARNING, "vllm.toptheta_npu"):
        for tokens in (99, 100):  # of the fewer, little is known
            counters.add(torch.tensor([500]), torch.tensor([[[kept]]]), torch.tensor([[[2]]]))
            metrics.step(decode=tokens)
            metrics.report()
    if told is None:
        assert not caplog.messages
    else:
        [message] = caplog.messages
        assert re.search(f"k~/k is {told}", message)


def test_an_idle_engine_has_exported_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request and then nothing: no further step comes that could export it."""
    monkeypatch.setattr(metrics_module, "_LIVE_SECONDS", 0.01)
    exported: Queue[Totals] = Queue()
    metrics = Metrics(1000, exported.put)
    layer = metrics.add_group(make_counters())
    for steps in (1, 2):
        with torch.inference_mode():
            for _ in range(steps):
                metrics.step(decode=1)
                add_row(layer)
        found = Totals()
        while found.rows < steps:
            added = exported.get(timeout=30)
            found = Totals(*(getattr(found, name) + getattr(added, name) for name in vars(found)))
        assert (found.rows, found.decode_tokens, found.kept) == (steps, steps, 2 * steps)


def test_no_step_is_lost_while_another_thread_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "_LIVE_SECONDS", 0.0)
    exported: list[Totals] = []
    metrics = Metrics(1000, exported.append)
    layer = metrics.add_group(make_counters())
    for _ in range(2000):
        metrics.step(decode=1)
        add_row(layer)
    metrics.report()
    assert len(exported) > 1
    assert sum(added.rows for added in exported) == sum(added.decode_tokens for added in exported) == 2000


def test_a_device_is_waited_for_by_the_thread_of_the_steps_alone() -> None:
    now, exported, threads = [0.0], [], set()

    def export(added: Totals) -> None:
        exported.append(added.decode_tokens)
        threads.add(threading.current_thread())

    metrics = Metrics(1000, export, lambda: now[0])
    metrics.add_group(make_counters("meta"))
    metrics.totals = lambda: Totals(**metrics._tokens)  # type: ignore[method-assign]
    for seconds in (0.4, 0.8, 1.2, 1.6, 2.4):
        now[0] = seconds
        metrics.step(decode=1)
    assert exported == [3, 2]
    assert threads == {threading.main_thread()}


class Shown:
    """A metric of prometheus_client, as far as it is used."""

    def __init__(self, name: str, documentation: str, **options: str) -> None:
        self.name, self.documentation, self.options = name, documentation, options
        self.value = 0.0

    def inc(self, amount: float) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value


def test_prometheus_shows_counters_and_how_much_is_kept_over_k(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", SimpleNamespace(Counter=Shown, Gauge=Shown))
    monkeypatch.setattr(metrics_module, "_SHOWN", {})
    export = prometheus_export()
    assert export is not None
    export(Totals(rows=3, sparse_aims=200, sparse_kept=190))
    export(Totals(rows=1, prompt_tokens=7))
    export(Totals(rows=2, sparse_aims=100, sparse_kept=50))
    shown = {each.name: each for each in metrics_module._SHOWN.values()}
    assert {name: each.value for name, each in shown.items() if each.value} == {
        "toptheta_rows": 6, "toptheta_prompt_tokens": 7, "toptheta_sparse_aims": 300, "toptheta_sparse_kept": 240,
        "toptheta_kept_over_k": 0.5,
    }  # fmt: skip
    assert shown["toptheta_kept_over_k"].options == {"multiprocess_mode": "mostrecent"}
    meanings = [each.documentation for each in shown.values()]
    assert len(set(meanings)) == len(meanings) == len(fields(Totals)) + 1
    assert all(meaning.endswith(".") and len(meaning.split()) > 2 for meaning in meanings)


def test_nothing_is_written_of_an_idle_engine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        Metrics(1).report()
    assert not caplog.messages


def test_what_did_not_happen_is_said_plainly() -> None:
    assert str(Totals(prompt_tokens=37, short_tokens=7)) == (
        "no token decoded by thresholds; 37 tokens of prompts and 0 with drafts, all dense; "
        "7 decoded densely in steps of short rows"
    )
