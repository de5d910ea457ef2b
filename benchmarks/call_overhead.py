"""Cost of the checked, registered operator over the native kernel that it calls, for a small case.

    python -m benchmarks.call_overhead

Alone: argument checks and dispatch around an empty implementation, in a tight loop, as in the first call of its kind.
In place: the operator against its own call of the compiled kernel with arguments that are already packed, alternating;
a call like an earlier one goes past checks and dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

import toptheta_npu
from benchmarks.tables import Table, show
from toptheta_npu import ops
from toptheta_npu.cpu import library, operators
from toptheta_npu.cpu.direct import CallCache
from toptheta_npu.fallback.schemas import giving_arguments
from toptheta_npu.ops import calls

_CALL = "operator(query, key, value, threshold)"


def register_empty() -> Any:
    """Register the operator's schema with an implementation that does nothing."""
    registered = torch.library.Library("toptheta_npu_benchmark", "DEF")
    registered.define("empty" + ops.SCHEMAS["incremental_attention"])
    registered.impl("empty", lambda query, *_, **__: torch.empty_like(query), "CPU")
    registered.impl("empty", torch.library.fallthrough_kernel, "Autograd")
    return registered, torch.ops.toptheta_npu_benchmark.empty.default


def packed_arguments(tensors: dict[str, Tensor]) -> tuple[bytes, Tensor]:
    """Capture what the operator hands to the kernel, and the output that the kernel writes into."""
    seen: list[bytes] = []

    def entry(dtype: torch.dtype) -> Callable[[bytes], int]:
        step = library.function(dtype)
        return lambda arguments: seen.append(arguments) or step(arguments)

    with toptheta_npu.use_backend("native", device="cpu"), mock.patch.object(operators, "function", entry):
        out = toptheta_npu.incremental_attention(**tensors)
    (arguments,) = seen
    return arguments, out


def _of_no_known_call(*_: object) -> None:
    """Stand in for `CallCache.key`, as a function: a mock takes microseconds."""


def microseconds(statement: str, names: dict[str, Any], number: int) -> float:
    return 1e6 * Timer(statement, globals=names).timeit(number).mean


def median_of(values: list[float]) -> float:
    return torch.tensor(values).median().item()


def measure() -> tuple[float, float]:
    """Measure the median microseconds of checks and dispatch: alone, and in place over the native kernel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    key, value = torch.randn(1, 2, 128, 64), torch.randn(1, 2, 128, 64)
    tensors = {"query": torch.randn(1, 8, 1, 64), "key": key, "value": value, "threshold": torch.full((8,), 1.5)}
    names: dict[str, Any] = tensors | {"operator": toptheta_npu.incremental_attention, "empty_like": torch.empty_like}
    names["arguments"], names["out"] = packed_arguments(tensors)
    names["kernel"] = library.function(torch.float32)
    registered, empty = register_empty()
    with torch.no_grad():
        unknown = mock.patch.object(CallCache, "key", new=_of_no_known_call)
        run_empty = giving_arguments("incremental_attention", empty)
        with unknown, mock.patch.dict(calls.RUN, incremental_attention=run_empty):
            alone = [
                microseconds(_CALL, names, 2000) - microseconds("empty_like(query)", names, 2000) for _ in range(9)
            ]
        with toptheta_npu.use_backend("native", device="cpu"):
            in_place = [
                microseconds(_CALL, names, 500) - microseconds("kernel(arguments)", names, 500) for _ in range(15)
            ]
    del registered
    torch.set_num_threads(threads)
    return median_of(alone), median_of(in_place)


def as_table(alone: float, in_place: float) -> Table:
    """Tabulate the figures."""
    rows = [
        ["argument checks and dispatch alone, of a call that is not known, in a tight loop", f"{alone:.2f} µs"],
        ["the operator over the native kernel that it calls, alternating", f"{in_place:.2f} µs"],
    ]
    return Table("Cost of a call on a CPU, one thread", ("", "time"), rows)


if __name__ == "__main__":
    show(as_table(*measure()))
