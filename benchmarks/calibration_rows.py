"""Cost of looking at calibration rows: the k-th largest of a row, and the sketch, on one thread.

    python -m benchmarks.calibration_rows

Within each table every method runs in the same rounds, so the ratios hold on a noisy machine; the
times do not compare across tables or runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.tables import Goal, goal_table
from toptheta_npu.calibration import SurvivalSketch, kth_largest
from toptheta_npu.timing.clocks import Timing, interleaved_medians

HEADS, ROWS = 4, 128
GOAL_MICROSECONDS = 4.0
_ONE = "kth_largest"
_Variants = dict[str, Callable[[int], object]]


def kth_variants(rows: torch.Tensor, k: int) -> _Variants:
    """Make the calls to time: methods for the (k+1)-th largest of each row, and kth_largest for several k at once."""
    return {
        _ONE: lambda _: kth_largest(rows, [k]),
        "kth_largest, 4 ranks": lambda _: kth_largest(rows, [k // 4, k // 2, k, 2 * k]),
        "torch.topk": lambda _: rows.topk(k + 1).values[:, -1],
        "torch.kthvalue": lambda _: rows.kthvalue(rows.shape[1] - k),
        "torch.quantile": lambda _: rows.quantile(1 - k / rows.shape[1], dim=1, interpolation="lower"),
    }


def sketch_variants(scores: torch.Tensor) -> _Variants:
    """Make the calls to time: the sketch on rows of a few length buckets and on causal rows, a read as the floor."""
    width = scores.shape[2]
    buckets = torch.arange(ROWS) // 16
    hidden = torch.arange(width) >= torch.linspace(1, width, ROWS)[:, None]
    causal = scores.masked_fill(hidden, -torch.inf)
    full_sketch, causal_sketch = (SurvivalSketch(HEADS, int(buckets[-1]) + 1) for _ in range(2))
    return {
        "full rows": lambda _: full_sketch.update(scores, buckets),
        "causal rows": lambda _: causal_sketch.update(causal, buckets),
        "against one pass of amax": lambda _: scores.amax(dim=-1),
    }


def goals(width: int = 2048, k: int = 128, rounds: int = 20) -> list[Goal]:
    """Measure the k-th largest in microseconds per row and the sketch in nanoseconds per element, others as ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    scores = torch.randn(HEADS, ROWS, width, generator=torch.Generator().manual_seed(0))
    kth = interleaved_medians(kth_variants(scores[0], k), copies=1, rounds=rounds)
    sketch = interleaved_medians(sketch_variants(scores), copies=1, rounds=rounds)
    torch.set_num_threads(threads)
    return [*_kth_goals(kth), *_sketch_goals(sketch, scores.numel())]


def _kth_goals(times: dict[str, Timing]) -> list[Goal]:
    own = times[_ONE].median
    others = [Goal(f"{name}, times as long", timing.median / own) for name, timing in times.items() if name != _ONE]
    return [Goal("k-th largest, per row", 1e6 * own / ROWS, GOAL_MICROSECONDS, " µs"), *others]


def _sketch_goals(times: dict[str, Timing], elements: int) -> list[Goal]:
    return [
        Goal(f"sketch of all elements, {name}, per element", 1e9 * timing.median / elements, unit=" ns")
        for name, timing in times.items()
    ]


def main(
    width: Annotated[int, typer.Option(help="Elements per row.")] = 2048,
    k: Annotated[int, typer.Option(help="Elements to keep per row.")] = 128,
    rounds: Annotated[int, typer.Option(help="Rounds per table.")] = 20,
) -> None:
    """Prints the cost per row of the k-th largest and the cost per element of the sketch."""
    Console().print(goal_table(goals(width, k, rounds), title=f"Calibration rows of {width}, k={k}").as_rich())


if __name__ == "__main__":
    typer.run(main)
