"""What a layer costs in a decode step above the native kernel: V sums, thresholds, arguments, counts, copies.

``python -m benchmarks.serving.overhead`` needs no vLLM. Steps of some layers run as in the plug-in, over caches as
vLLM's kernel for CPUs lays them out; the time within the operator's kernel is taken off. Batches and
lengths take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama_thresholds
from toptheta_npu.vllm.engine import EngineLayers
from toptheta_npu.vllm.metrics import Metrics
from toptheta_npu.vllm.settings import Settings
from toptheta_npu.vllm.steps import Step, attend

BATCHES, LENGTHS = (1, 4, 16, 64), (1500, 6000)
LAYERS, HEADS, KV_HEADS, HEAD_DIM = 6, 8, 2, 64


class FullAttentionSpec:
    """The kind of cache of layers that see all tokens."""


class Implementation:
    """What an engine knows of the implementation of a layer."""

    num_heads, num_kv_heads, scale, sliding_window = HEADS, KV_HEADS, HEAD_DIM**-0.5, None
    rule: Any = None


class Layer:
    """A layer of an engine over a cache [pages, Hkv, block_size, 2D], in which the keys of a page lie by columns."""

    def __init__(self, cache: Tensor) -> None:
        self.impl = Implementation()
        pages, heads, rows, width = cache.shape
        keys, self.values = cache.view(pages, heads, 2 * rows, width // 2).chunk(2, dim=2)
        self.keys = keys.view(pages, heads, width // 2, rows).transpose(2, 3)


class Timed:
    """A function whose time is added up."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.nanoseconds = function, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter_ns()
        result = self.function(*arguments, **options)
        self.nanoseconds += time.perf_counter_ns() - start
        return result


class Decoding:
    """Sequences of one length that decode in all layers of an engine."""

    def __init__(self, batch: int, length: int, caches: list[Tensor]) -> None:
        block_size = caches[0].shape[2]
        pages = pages_of(length, block_size)
        self.table = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(0)).int().view(batch, pages)
        self.lengths = torch.full((batch,), length, dtype=torch.int32)
        # sequences are at different places of their pages
        self.lengths += torch.arange(batch, dtype=torch.int32) % 64
        self.query, self.out = torch.randn(batch, HEADS, HEAD_DIM), torch.empty(batch, HEADS, HEAD_DIM)
        table = load_tiny_llama_thresholds("pre_softmax")
        engine = EngineLayers(
            Settings(TINY_LLAMA / "thresholds_pre_softmax.theta", k=64), table.at(64), Metrics(1e9), 0
        )
        self.layers = {f"layers.{index}.attn": Layer(cache) for index, cache in enumerate(caches)}
        engine.give_rules(FullAttentionSpec(), self.layers)
        self.starts = torch.arange(batch + 1, dtype=torch.int32)
        for layer in self.layers.values():
            layer.impl.rule = layer.impl.rule.with_page_sums(layer.values)
            layer.impl.rule.page_sums.rebuild(layer.values, self.table, self.lengths)
        self._run()  # which keeps the calls that later steps repeat

    def step(self) -> float:
        """Run a step. Return the time per layer above the kernel's calls, in microseconds."""
        repeated = next(iter(self.layers.values())).impl.rule.group.repeated
        kernels = [Timed(call._entry) for call in repeated.values()]
        for call, kernel in zip(repeated.values(), kernels, strict=True):
            call._entry = kernel
        start = time.perf_counter_ns()
        self._run()
        total = time.perf_counter_ns() - start
        for call, kernel in zip(repeated.values(), kernels, strict=True):
            call._entry = kernel.function
        return (total - sum(kernel.nanoseconds for kernel in kernels)) / LAYERS / 1000

    def _run(self) -> None:
        step = Step.of(self.starts, self.lengths, self.table)
        for layer in self.layers.values():
            attend(step, self.query, layer.keys, layer.values, layer.impl.rule, self.out)


def pages_of(length: int, block_size: int) -> int:
    """Count the pages of a sequence and of 64 tokens more."""
    return -(-(length + 64) // block_size)


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="steps of each batch and length")
    parser.add_argument("--block-size", type=int, default=128, help="tokens of a page")
    arguments = parser.parse_args()
    pages, rows = BATCHES[-1] * pages_of(LENGTHS[-1], arguments.block_size), arguments.block_size
    caches = [torch.randn(1, KV_HEADS, rows, 2 * HEAD_DIM).repeat(pages, 1, 1, 1) for _ in range(LAYERS)]
    cases = {(batch, length): Decoding(batch, length, caches) for batch in BATCHES for length in LENGTHS}
    found: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    with torch.inference_mode():
        for _ in range(arguments.rounds):
            for case, decoding in cases.items():
                found[case].append(decoding.step())
    print("microseconds per layer and step above the native kernel; median, lower and upper quartile")
    for (batch, length), times in found.items():
        low, middle, high = statistics.quantiles(times, n=4)
        print(f"batch {batch:2}, {length} keys: {middle:6.1f} ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
