"""Cost of another k while a model runs: thresholds for every layer, head and row length, written in place.

    python -m benchmarks.set_k

All rows run in the same rounds, so that the ratios hold on a noisy machine. The floor writes the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console

from benchmarks.tables import Goal, goal_table
from toptheta_npu.models.sparse.device_thresholds import DeviceThresholds
from toptheta_npu.thresholds import Placement, ThresholdTable
from toptheta_npu.thresholds.knots import length_knots
from toptheta_npu.thresholds.lookup import Lookup
from toptheta_npu.thresholds.targets import Target
from toptheta_npu.timing.clocks import Timing, interleaved_medians

KS = (32, 64, 128, 256, 512)
GOAL_MILLISECONDS = 50.0
_FLOOR = "writing as many numbers"
#: One number for every layer, head and row length, from the calibrated thresholds.
_WITH_A_GOAL = ("set_k, pre-softmax", "set_k, post-softmax", "set_k to calibrated k", "set_target_kept")


def table_of(layers: int, heads: int, longest: int, placement: Placement, *, offline: bool = False) -> ThresholdTable:
    """Make thresholds that depend on k and length as those of models do."""
    lengths, k = torch.tensor(length_knots(longest, KS[0] + 1)), torch.tensor(KS)
    level = torch.randn(1, layers, heads, 1, generator=torch.Generator().manual_seed(0))
    line = level + 0.3 * lengths.log() - 0.6 * k.log().view(-1, 1, 1, 1)
    theta = line if placement == "pre_softmax" else (line - 6).exp().clamp(max=1)
    return ThresholdTable(
        theta=theta, k=k, lengths=lengths, counts=torch.ones(theta.shape[1:], dtype=torch.int64),
        std=torch.zeros_like(theta), placement=placement, estimator="pooled", alpha=0.0, layer_k=[0] * layers,
        fingerprint="benchmark", discarded_mass=torch.rand_like(theta) if offline else None,
    )  # fmt: skip


def variants(layers: int, heads: int, longest: int) -> dict[str, Callable[[int], object]]:
    """Make the calls to time: `SparseRun.set_k` and `set_target_kept`, in turns between two targets, and the floor."""
    pre, post, offline = (
        Lookup(table_of(layers, heads, longest, placement, offline=mass))
        for placement, mass in (("pre_softmax", False), ("post_softmax", False), ("pre_softmax", True))
    )
    fitted = Lookup(table_of(layers, heads, longest, "pre_softmax"), form="fitted")
    share = min(0.05, KS[-1] / longest)
    plain = [Target(100), Target(300)]
    parts = [np.empty((longest + 1, heads), dtype=np.float32) for _ in range(layers)]
    floor = [torch.from_numpy(part) for part in parts]
    return {
        "set_k, pre-softmax": _changes(pre, plain),
        "set_k, post-softmax": _changes(post, plain),
        "set_k to calibrated k": _changes(pre, [Target(128), Target(256)]),
        "set_k with a discarded mass, twice the numbers": _changes(offline, plain),
        "set_k, fitted": _changes(fitted, plain),
        "set_target_kept": _changes(pre, [Target(target_kept=share), Target(target_kept=share / 2)]),
        _FLOOR: lambda number: [part.fill_(number) for part in floor],
    }


def _changes(lookup: Lookup, targets: list[Target]) -> Callable[[int], object]:
    held, turn = DeviceThresholds(lookup.at(targets[0])), iter(range(10**9))

    def change(_: int) -> None:
        held.replace(lookup.at(targets[next(turn) % len(targets)]))

    return change


def goals(layers: int = 32, heads: int = 32, longest: int = 8192, rounds: int = 20) -> list[Goal]:
    """Measure the milliseconds of each, and the rate at which the floor writes."""
    times: dict[str, Timing] = interleaved_medians(variants(layers, heads, longest), copies=1, rounds=rounds)
    usual = (layers, heads, longest) == (32, 32, 8192)
    found = [
        Goal(name, 1e3 * timing.median, GOAL_MILLISECONDS if usual and name in _WITH_A_GOAL else None, " ms")
        for name, timing in times.items()
    ]
    written = 4 * layers * heads * (longest + 1)
    return [*found, Goal(f"{_FLOOR}, rate", written / times[_FLOOR].median / 2**30, unit=" GiB/s")]


def main(
    layers: Annotated[int, typer.Option(help="Layers.")] = 32,
    heads: Annotated[int, typer.Option(help="Query heads.")] = 32,
    longest: Annotated[int, typer.Option(help="Longest row.")] = 8192,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 20,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
) -> None:
    """Print what another k costs."""
    torch.set_num_threads(threads)
    title = f"another k for {layers} x {heads} heads and rows of up to {longest}, {threads} threads"
    table = goal_table(goals(layers, heads, longest, rounds), title=title)
    Console(width=max(Console().width, 120)).print(table.as_rich())


if __name__ == "__main__":
    typer.run(main)
