"""Runs threads that share a model's weights and compute with one core each.

PyTorch splits every operator over all cores and waits, spinning, for the slowest one. A small operator is over sooner
than that wait where another program holds a core. Whole pieces of work side by side need no such waits.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

T = TypeVar("T")
_MAX_WORKERS = 4  # the interpreter runs one of them at a time between two operators


class ModelWorkers:
    """Run functions of a model in threads, first come first served.

    Within the context PyTorch shares its threads among them. Leaving it stops what still runs at its next
    `check`, and waits for that.

    Args:
        model: in evaluation mode; each thread has a copy, of which the weights are the model's own.
        count: of threads; by default one per core of this process, at most 4.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> with ModelWorkers(load_tiny_llama()[0], count=2) as workers:
        ...     workers.submit(lambda model: model.config.head_dim).result()
        64
    """

    def __init__(self, model: PreTrainedModel, count: int | None = None) -> None:
        self.count = count or min(available_cores(), _MAX_WORKERS)
        self._models: SimpleQueue[PreTrainedModel] = SimpleQueue()
        for _ in range(self.count):
            self._models.put(share_weights(model))
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="toptheta")
        self._stopped = False
        self._threads = torch.get_num_threads()

    def __enter__(self) -> ModelWorkers:
        torch.set_num_threads(max(1, self._threads // self.count))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = kind is not None
        self._pool.shutdown(wait=True, cancel_futures=self._stopped)
        torch.set_num_threads(self._threads)

    def submit(self, work: Callable[[PreTrainedModel], T]) -> Future[T]:
        """Queue a piece of work; it may wait for one that was submitted before it, never for a later one."""
        return self._pool.submit(self._run, work)

    def check(self, *_: object) -> None:
        """Raise once the context has been left by an error; long work calls it between its steps."""
        if self._stopped:
            raise CancelledError

    def _run(self, work: Callable[[PreTrainedModel], T]) -> T:
        self.check()
        model = self._models.get()
        try:
            return work(model)
        finally:
            self._models.put(model)


def share_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model, but share its weights."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def available_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
