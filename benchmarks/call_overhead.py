"""Cost of the checked, registered operator over the native kernel that it calls, for a small case.

    python -m benchmarks.call_overhead

The operator alternates with its own call of the compiled kernel, whose arguments are packed already. A call like an
earlier one goes past checks and dispatcher.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

import toptheta_npu
from toptheta_npu.cpu import library, operators

_CALLS, _ROUNDS = 500, 15


def packed_arguments(tensors: dict[str, Tensor]) -> tuple[bytes, Tensor]:
    """Capture what the operator hands to the kernel, and the output that the kernel writes into."""
    seen: list[bytes] = []

    def entry(dtype: torch.dtype) -> Callable[[bytes], int]:
        step = library.function(dtype)
        return lambda arguments: seen.append(arguments) or step(arguments)

    with mock.patch.object(operators, "function", entry):
        out = toptheta_npu.incremental_attention(**tensors)
    (arguments,) = seen
    return arguments, out


def measure() -> float:
    """Measure the median microseconds of checks and dispatch, on one thread."""
    torch.set_num_threads(1)
    key, value = torch.randn(1, 2, 128, 64), torch.randn(1, 2, 128, 64)
    tensors = {"query": torch.randn(1, 8, 1, 64), "key": key, "value": value, "threshold": torch.full((8,), 1.5)}
    with torch.no_grad(), toptheta_npu.use_backend("native", device="cpu"):
        arguments, out = packed_arguments(tensors)
        names: dict[str, Any] = tensors | {
            "operator": toptheta_npu.incremental_attention, "kernel": library.function(torch.float32),
            "arguments": arguments, "out": out,
        }  # fmt: skip
        timers = [
            Timer(statement, globals=names)
            for statement in ("operator(query, key, value, threshold)", "kernel(arguments)")
        ]
        differences = []
        for _ in range(_ROUNDS):
            operator, kernel = (timer.timeit(_CALLS).mean for timer in timers)
            differences.append(1e6 * (operator - kernel))
    return statistics.median(differences)


if __name__ == "__main__":
    print(f"the operator over the native kernel that it calls, one thread: {measure():.2f} µs")
