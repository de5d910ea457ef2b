"""Cost of the checked, registered operator over calling the fallback directly, for a small case.

    python -m benchmarks.call_overhead

Alone: argument checks and dispatch around an empty implementation, in a tight loop. In place: the operator
against the fallback it runs, alternating. The second is larger, since the fallback's own 90 or so torch
calls push the code of checks and dispatcher out of the caches between two calls.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from rich.console import Console
from torch import Tensor
from torch.utils.benchmark import Timer

import toptheta_npu
from benchmarks.tables import Goal, goal_table
from toptheta_npu import fallback, operator

GOAL_MICROSECONDS = 15.0


def register_empty() -> Any:
    """The operator's schema with an implementation that does nothing."""
    library = torch.library.Library("toptheta_npu_benchmark", "DEF")
    library.define("empty" + operator.SCHEMAS["incremental_attention"])
    library.impl("empty", operator._after_checks(lambda query, *_, **__: torch.empty_like(query)), "CPU")
    library.impl("empty", torch.library.fallthrough_kernel, "Autograd")
    return library, torch.ops.toptheta_npu_benchmark.empty


def microseconds(statement: str, names: dict[str, Any], number: int) -> float:
    return 1e6 * Timer(statement, globals=names).timeit(number).mean


def median_of(values: list[float]) -> float:
    return torch.tensor(values).median().item()


def measure() -> tuple[float, float]:
    """Median microseconds of checks and dispatch: alone, and in place over the fallback."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    key, value = torch.randn(1, 2, 128, 64), torch.randn(1, 2, 128, 64)
    tensors: dict[str, Tensor] = {"query": torch.randn(1, 8, 1, 64), "key": key, "value": value}
    names: dict[str, Any] = tensors | {"threshold": torch.full((8,), 1.5), "empty_like": torch.empty_like}
    names |= {"operator": toptheta_npu.incremental_attention, "direct": fallback.incremental_attention}
    call = "operator(query, key, value, threshold)"
    straight = "direct(query, key, value, threshold, num_heads=8, num_key_value_heads=2)"
    library, empty = register_empty()
    with torch.no_grad(), toptheta_npu.use_backend("fallback", device="cpu"):
        with mock.patch.object(torch.ops.toptheta_npu, "incremental_attention", empty):
            alone = [microseconds(call, names, 2000) - microseconds("empty_like(query)", names, 2000) for _ in range(9)]
        in_place = [microseconds(call, names, 500) - microseconds(straight, names, 500) for _ in range(15)]
    del library
    torch.set_num_threads(threads)
    return median_of(alone), median_of(in_place)


def goals() -> list[Goal]:
    """The figures beside their goal."""
    alone, in_place = measure()
    return [
        Goal("argument checks and dispatch alone, in a tight loop", alone, GOAL_MICROSECONDS, " µs"),
        Goal("the operator over the fallback that it runs, alternating", in_place, GOAL_MICROSECONDS, " µs"),
    ]


if __name__ == "__main__":
    Console().print(goal_table(goals(), title="Cost of a call on a CPU, one thread").as_rich())
