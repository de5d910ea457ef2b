"""What a layer costs in a decode step above the operator: V sums, thresholds, arguments, counts, copies.

``python -m benchmarks.serving.overhead`` needs no vLLM. Steps of some layers run as in the plug-in, over caches as
vLLM's kernel for CPUs lays them out. Batches and lengths take turns. Two things are measured:

- above the native kernel: the time within the kernel is taken off, and all else counts, the packing of arguments and
  the crossing from Python, too;
- above the operator as a user calls it, with thresholds and means at hand: what such calls take above the kernel is
  taken off as well.

The kernel fills the processor's caches with K and V. So whatever runs and is read after it comes from memory, the
interpreter, too. Two figures say how much that is: `floor` is the time above the kernel of calls whose arguments are
packed already, one foreign call for each layer, and `reads` is the time in which one thread reads as many bytes as the
means of V rows need, if they lay one after the other.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.serving.tables import overhead_table
from toptheta_npu import incremental_attention_with_stats
from toptheta_npu._compiler import find_compiler, run_compiler
from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama_thresholds
from toptheta_npu.cpu import library, operators, repeated
from toptheta_npu.vllm.engine import EngineLayers
from toptheta_npu.vllm.layouts import Pages
from toptheta_npu.vllm.metrics import Metrics
from toptheta_npu.vllm.page_sums import _ROWS_ON_CPU
from toptheta_npu.vllm.settings import Settings
from toptheta_npu.vllm.steps import Step, attend

BATCHES, LENGTHS = (1, 4, 16, 64), (1500, 6000)
LAYERS, HEADS, KV_HEADS, HEAD_DIM = 6, 8, 2, 64
#: Of each batch and length, in this order.
FIGURES = ("above_kernel", "above_operator", "floor", "reads")


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


class KernelClock:
    """Adds up the time within the operator's kernel, for calls that are kept while it is `watching`."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "kernel_clock.so"
            source = Path(__file__).with_name("kernel_clock.cpp")
            command = [*find_compiler().command, "-O2", "-fPIC", "-shared", str(source), "-o", str(built)]
            run_compiler(command)
            self._library = ctypes.CDLL(str(built))
        self.kernel = self._library.timed_kernel
        self.nanoseconds_to_read = self._library.nanoseconds_to_read
        self.nanoseconds_to_read.argtypes = [ctypes.c_void_p, ctypes.c_longlong]
        self.nanoseconds_to_read.restype = ctypes.c_longlong
        self.kernel.argtypes, self.kernel.restype = [ctypes.c_char_p], ctypes.c_int32
        self._nanoseconds = ctypes.c_longlong.in_dll(self._library, "nanoseconds")

    @contextmanager
    def watching(self, packed: list[bytes] | None = None) -> Iterator[None]:
        """Put the clock around the kernel, for calls and for those that are kept meanwhile; note what calls pack."""
        kernel = ctypes.cast(library.function(torch.float32), ctypes.c_void_p)
        ctypes.c_void_p.in_dll(self._library, "kernel").value = kernel.value

        def noted(arguments: bytes) -> int:
            assert packed is not None
            packed.append(arguments)
            return int(self.kernel(arguments))

        run = self.kernel if packed is None else noted
        with (
            mock.patch.object(repeated, "function", return_value=self.kernel),
            mock.patch.object(operators, "function", return_value=run),
        ):
            yield

    def take(self) -> int:
        """Get the nanoseconds since the last time."""
        found, self._nanoseconds.value = self._nanoseconds.value, 0
        return found

    def above_kernel(self, function: Callable[[], Any]) -> float:
        """Run a step. Return the time per layer without that within the kernel, in microseconds."""
        self.take()
        start = time.perf_counter_ns()
        function()
        return (time.perf_counter_ns() - start - self.take()) / LAYERS / 1000


class Decoding:
    """Sequences of one length that decode in all layers of an engine."""

    def __init__(self, batch: int, length: int, caches: list[Tensor], clock: KernelClock) -> None:
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
        self._rules = [layer.impl.rule.with_pages(Pages(layer.keys, layer.values)) for layer in self.layers.values()]
        for rule, layer in zip(self._rules, self.layers.values(), strict=True):
            rule.page_sums.rebuild(layer.values, self.table, self.lengths)
        step = Step.of(self.starts, self.lengths, self.table)
        self._theta = self._rules[0].group.look_up(self.lengths).theta
        self._means = [
            rule.page_sums.means(layer.values, step.new)
            for rule, layer in zip(self._rules, self.layers.values(), strict=True)
        ]
        self._clock = clock
        with clock.watching():
            self.step()  # which keeps the calls that later steps repeat
        self._packed: list[bytes] = []
        with clock.watching(self._packed):
            self._results = self.operators()  # into which packed calls write

    def step(self) -> None:
        """Run a step of the plug-in."""
        step = Step.of(self.starts, self.lengths, self.table)
        for rule, layer in zip(self._rules, self.layers.values(), strict=True):
            attend(step, self.query, layer.keys, layer.values, rule, self.out)

    def operators(self) -> list[Any]:
        """Call the operator for each layer."""
        query = self.query.unsqueeze(2)
        return [
            incremental_attention_with_stats(
                query, layer.keys, layer.values, theta, actual_seq_lengths=self.lengths, block_table=self.table,
                block_size=layer.values.shape[2], num_key_value_heads=KV_HEADS, sdc="exact", value_mean=mean,
            )
            for layer, theta, mean in zip(self.layers.values(), self._theta, self._means, strict=True)
        ]  # fmt: skip

    def packed_calls(self) -> None:
        """Call the kernel for each layer with arguments that are packed already."""
        for packed in self._packed:
            self._clock.kernel(packed)

    def reads(self) -> float:
        """Return the time to read what the means of a layer need: a sum of each sequence, and the rows after it."""
        content = torch.ones(int((1 + self.lengths % _ROWS_ON_CPU).sum()) * KV_HEADS * HEAD_DIM)
        self.packed_calls()  # which leave nothing of it in the processor's caches
        return self._clock.nanoseconds_to_read(content.data_ptr(), content.nbytes) / 1000


def pages_of(length: int, block_size: int) -> int:
    """Count the pages of a sequence and of 64 tokens more."""
    return -(-(length + 64) // block_size)


def measure(rounds: int, block_size: int = 128) -> dict[str, Any]:
    """Measure steps of each batch and length, in turns; return quartiles in microseconds."""
    pages = BATCHES[-1] * pages_of(LENGTHS[-1], block_size)
    caches = [torch.randn(1, KV_HEADS, block_size, 2 * HEAD_DIM).repeat(pages, 1, 1, 1) for _ in range(LAYERS)]
    clock = KernelClock()
    cases = {(batch, length): Decoding(batch, length, caches, clock) for batch in BATCHES for length in LENGTHS}
    times: dict[tuple[int, int], list[tuple[float, ...]]] = {case: [] for case in cases}
    with torch.inference_mode(), clock.watching():
        for _ in range(rounds):
            for case, decoding in cases.items():
                figures = []
                for run in (decoding.step, decoding.operators, decoding.packed_calls):
                    run()  # a step follows one like it
                    figures.append(clock.above_kernel(run))
                plugin, operator, floor = figures
                times[case].append((plugin, plugin - operator, floor, decoding.reads()))
    steps = [
        {"batch": batch, "keys": length}
        | {
            name: statistics.quantiles(of_name, n=4)
            for name, of_name in zip(FIGURES, zip(*taken, strict=True), strict=True)
        }
        for (batch, length), taken in times.items()
    ]
    return {"rounds": rounds, "layers": LAYERS, "block_size": block_size, "steps": steps}


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="steps of each batch and length")
    parser.add_argument("--block-size", type=int, default=128, help="tokens of a page")
    arguments = parser.parse_args()
    print(overhead_table(measure(arguments.rounds, arguments.block_size)).as_markdown())


if __name__ == "__main__":
    main()
