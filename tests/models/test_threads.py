"""Several threads in one context: each gets what it would get alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.tiny import CACHES, K, model_of, new_cache, new_model, table_of, tokens
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.methods.top_k import select_top_k as top_k
from toptheta_npu.models import apply_selection, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.hook.architecture import attention_modules

THREADS, STEPS = 4, 6


def together(act: Callable[[int], Any]) -> list[Any]:
    """``act(number)`` in that many threads at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(act, range(THREADS)))


@pytest.fixture
def in_step(monkeypatch):
    """Makes the threads meet before every attention layer, so that they take turns layer by layer."""
    barrier = threading.Barrier(THREADS)
    modules = attention_modules(model_of())
    main = threading.get_ident()

    def meet(module, args):
        if threading.get_ident() != main:
            barrier.wait(timeout=30)

    # around the forward proper, that is after the context has looked at the call
    handles = [module.q_proj.register_forward_pre_hook(meet) for module in modules]
    handles += [module.v_proj.register_forward_pre_hook(meet) for module in modules]
    yield
    for handle in handles:
        handle.remove()


def decode(number: int, kind: str = "growing") -> Tensor:
    """Logits of a prompt of its own (one length for all) and of decode steps."""
    ids = tokens(1, 20 + STEPS, seed=number)
    cache = new_cache(kind)
    with torch.no_grad():
        parts = [model_of()(ids[:, :20], **{CACHE_ARGUMENT: cache}).logits]
        for at in range(20, 20 + STEPS):
            parts.append(model_of()(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache}).logits)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.usefixtures("in_step")
def test_threads_that_take_turns_equal_their_single_runs(kind):
    with sparsify(model_of(), table_of(), k=K):
        alone = [decode(number, kind) for number in range(THREADS)]
        found = together(lambda number: decode(number, kind))
    for single, threaded in zip(alone, found, strict=True):
        assert torch.equal(single, threaded)


def test_many_threads_that_enter_at_once_get_one_context():
    model, barrier = new_model(), threading.Barrier(THREADS)

    def enter(number: int) -> str:
        barrier.wait(timeout=30)
        try:
            with apply_selection(model, lambda layer: top_k(K)):
                barrier.wait(timeout=30)
                return "in"
        except TopThetaValueError as refused:
            barrier.wait(timeout=30)
            return str(refused)

    for _ in range(5):
        found = together(enter)
        assert found.count("in") == 1
    assert model.config._attn_implementation == "sdpa"
    assert type(attention_modules(model)[0]).__mro__[1] is torch.nn.Module
