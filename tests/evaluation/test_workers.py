"""Methods side by side on threads give what they give one after the other."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from toptheta_npu.evaluation.methods import kinds
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.evaluation.workers import ModelWorkers, available_cores


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, initializer_range=0.4,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_results_are_those_of_one_method_after_the_other(model: LlamaForCausalLM) -> None:
    windows = torch.randint(64, (2, 96), generator=torch.Generator().manual_seed(1))
    task = PerplexityTask(model, windows, 24)
    targets = [8] * 4

    def list_methods() -> list[Method]:
        return [kinds.dense(), kinds.top_k(8, targets), kinds.last_k(8, targets), kinds.pages(8, targets)]

    with ModelWorkers(model, 3) as workers:
        futures = [workers.submit(lambda model, m=method: task.measure(m, model)) for method in list_methods()]
        together = [future.result() for future in futures]
    for result, method in zip(together, list_methods(), strict=True):
        alone = task.measure(method, model)
        assert result.scores == pytest.approx(alone.scores, rel=1e-5)
        assert (result.reads, result.reads_all) == (alone.reads, alone.reads_all)


def test_threads_share_the_weights_and_nothing_else(model: LlamaForCausalLM) -> None:
    barrier = threading.Barrier(2)

    def look(copy: Any) -> tuple[int, int, int]:
        barrier.wait(60)
        return id(copy), id(copy.config), copy.lm_head.weight.data_ptr()

    with ModelWorkers(model, 2) as workers:
        first, second = [future.result() for future in [workers.submit(look), workers.submit(look)]]
    assert first[2] == second[2] == model.lm_head.weight.data_ptr()
    assert len({first[0], second[0], id(model)}) == len({first[1], second[1], id(model.config)}) == 3


def test_one_thread_per_operator_within_the_context_only(model: LlamaForCausalLM) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ModelWorkers(model, 2) as workers:
            assert workers.submit(lambda _: torch.get_num_threads()).result() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_error_stops_what_runs_and_what_waits(model: LlamaForCausalLM) -> None:
    started = threading.Event()

    def endless(_: Any) -> None:
        started.set()
        while True:
            workers.check()

    workers = ModelWorkers(model, 1)
    with suppress(ZeroDivisionError), workers:
        running, waiting = workers.submit(endless), workers.submit(lambda _: None)
        started.wait(60)
        raise ZeroDivisionError
    assert isinstance(running.exception(), CancelledError)
    assert waiting.cancelled()


def test_cores_are_those_of_this_process() -> None:
    assert available_cores() >= 1
