"""Cost of the checked, registered operator over calling the fallback directly, for a small case.

python benchmarks/call_overhead.py
"""

from __future__ import annotations

import torch
from rich.console import Console
from torch.utils.benchmark import Timer

import toptheta_npu
from toptheta_npu import fallback

GOAL_MICROSECONDS = 15.0


def main() -> None:
    torch.set_num_threads(1)
    query, threshold = torch.randn(1, 8, 1, 64), torch.full((8,), 1.5)
    key, value = torch.randn(1, 2, 128, 64), torch.randn(1, 2, 128, 64)
    arguments = {"query": query, "key": key, "value": value, "threshold": threshold}
    operator = Timer("f(query, key, value, threshold)", globals=arguments | {"f": toptheta_npu.incremental_attention})
    direct = Timer(
        "f(query, key, value, threshold, num_heads=8, num_key_value_heads=2)",
        globals=arguments | {"f": fallback.incremental_attention},
    )
    with torch.no_grad():
        differences = []
        for _ in range(15):
            through, straight = operator.timeit(500).mean, direct.timeit(500).mean
            differences.append(1e6 * (through - straight))
    overhead = torch.tensor(differences).median().item()
    met = "met" if overhead <= GOAL_MICROSECONDS else "missed"
    Console().print(f"operator over fallback: {overhead:.1f} us per call (goal {GOAL_MICROSECONDS:.0f} us, {met})")


if __name__ == "__main__":
    main()
