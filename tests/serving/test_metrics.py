"""What an engine counts, and what it writes."""

from __future__ import annotations

import logging
import re
import sys
import threading
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from toptheta_npu.assets import load_tiny_llama_thresholds
from toptheta_npu.vllm.layers import LayerGroup, LayerRule, of_heads
from toptheta_npu.vllm.metrics import Aims, Counters, Metrics, Totals, prometheus_export


def test_layers_of_a_group_are_counted_together() -> None:
    """Padding is no row, and dense rows aim at nothing."""
    counters = Counters(2, 1, 1, lambda lengths: torch.cat([aims_of(lengths), 2 * aims_of(lengths)]))
    for _ in range(2):
        kept = torch.tensor([[[3], [2], [0]], [[6], [2], [0]]])
        counters.add(torch.tensor([10, 4, 0]), kept, torch.tensor([[[4], [2], [0]], [[7], [2], [0]]]))
    assert counters.totals() == {
        "rows": 8, "elements": 56, "kept": 26, "available_value_rows": 56, "value_rows": 30,
        "sparse_aims": 18, "sparse_kept": 18,
    }  # fmt: skip


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


@pytest.mark.parametrize(("device", "exported"), [("cpu", [1, 1, 1, 1, 1]), ("meta", [3, 2])])
def test_steps_export_at_once_or_where_a_device_is_waited_for_once_a_second(device: str, exported: list[int]) -> None:
    now, found = [0.0], list[int]()
    metrics = Metrics(1000, lambda added: found.append(added.decode_tokens), lambda: now[0])
    metrics.add_group(make_counters(device))
    metrics.totals = lambda: Totals(**metrics._tokens)  # type: ignore[method-assign]
    for seconds in (0.4, 0.8, 1.2, 1.6, 2.4):
        now[0] = seconds
        metrics.step(decode=1)
    assert found == exported


def test_a_report_beside_a_step_exports_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An atexit function or a user asks for it while the engine's thread goes on."""
    exported, looked, stepped = list[int](), threading.Event(), threading.Event()
    metrics = Metrics(1000, lambda added: exported.append(added.decode_tokens))
    reporting, counted = threading.Thread(target=metrics.report), Metrics.totals

    def totals(self: Metrics) -> Totals:
        found = counted(self)
        if threading.current_thread() is reporting:
            looked.set()
            stepped.wait(0.2)  # for a step that nothing holds up
        return found

    monkeypatch.setattr(Metrics, "totals", totals)
    metrics.step(decode=1)
    reporting.start()
    looked.wait()
    metrics.step(decode=1)
    stepped.set()
    reporting.join()
    assert exported == [1, 1]


class Shown:
    """A counter of prometheus_client, as far as it is used."""

    def __init__(self, name: str, documentation: str) -> None:
        self.documentation, self.value = documentation, 0
        SHOWN[name] = self

    def inc(self, amount: int) -> None:
        self.value += amount


SHOWN: dict[str, Shown] = {}


def test_prometheus_shows_counters_and_what_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", SimpleNamespace(Counter=Shown))
    export = prometheus_export.__wrapped__()
    assert export is not None
    export(Totals(rows=3, sparse_aims=200, sparse_kept=190))
    export(Totals(rows=1, prompt_tokens=7))
    assert {name: each.value for name, each in SHOWN.items() if each.value} == {
        "toptheta_rows": 4, "toptheta_prompt_tokens": 7, "toptheta_sparse_aims": 200, "toptheta_sparse_kept": 190,
    }  # fmt: skip
    meanings = {each.documentation for each in SHOWN.values()}
    assert len(meanings) == len(SHOWN) == len(fields(Totals))


def test_nothing_is_written_of_an_idle_engine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vllm.toptheta_npu"):
        Metrics(1).report()
    assert not caplog.messages


def test_what_did_not_happen_is_said_plainly() -> None:
    assert str(Totals(prompt_tokens=37, short_tokens=7)) == (
        "no token decoded by thresholds; 37 tokens of prompts and 0 with drafts, all dense; "
        "7 decoded densely in steps of short rows"
    )
