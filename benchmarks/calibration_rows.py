"""Cost of looking at calibration rows: the k-th largest of a row, and the sketch, on one thread.

    python benchmarks/calibration_rows.py [--width 2048] [--k 128] [--rounds 20]

Within each table every method runs in the same rounds, so the ratios hold on a noisy machine; the
times do not compare across tables or runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from timing import interleaved_medians

from toptheta_npu.calibration import SurvivalSketch, kth_largest

HEADS, ROWS = 4, 128


def main(
    width: Annotated[int, typer.Option(help="Elements per row.")] = 2048,
    k: Annotated[int, typer.Option(help="Elements to keep per row.")] = 128,
    rounds: Annotated[int, typer.Option(help="Rounds per table.")] = 20,
) -> None:
    """Prints the cost per row of the k-th largest and the cost per element of the sketch."""
    torch.set_num_threads(1)
    scores = torch.randn(HEADS, ROWS, width, generator=torch.Generator().manual_seed(0))
    console = Console()
    console.print(kth_table(scores[0], k, rounds))
    console.print(sketch_table(scores, rounds))


def kth_table(rows: torch.Tensor, k: int, rounds: int) -> Table:
    """Methods that find the (k+1)-th largest of each row, and kth_largest for several k at once."""
    variants: dict[str, Callable[[int], object]] = {
        "kth_largest": lambda _: kth_largest(rows, [k]),
        "kth_largest, 4 ranks": lambda _: kth_largest(rows, [k // 4, k // 2, k, 2 * k]),
        "torch.topk": lambda _: rows.topk(k + 1).values[:, -1],
        "torch.kthvalue": lambda _: rows.kthvalue(rows.shape[1] - k),
        "torch.quantile": lambda _: rows.quantile(1 - k / rows.shape[1], dim=1, interpolation="lower"),
    }
    table = Table("method", "us per row", "p10 to p90", "ratio", title=f"k={k} of {rows.shape[1]}")
    medians = interleaved_medians(variants, copies=1, rounds=rounds)
    for name, seconds in medians.items():
        middle, low, high = (1e6 * each / len(rows) for each in seconds)
        ratio = seconds[0] / medians["kth_largest"][0]
        table.add_row(name, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{ratio:.1f}")
    return table


def sketch_table(scores: torch.Tensor, rounds: int) -> Table:
    """The sketch on rows of a few length buckets, on causal rows, and reading the rows as the floor."""
    width = scores.shape[2]
    buckets = torch.arange(ROWS) // 16
    hidden = torch.arange(width) >= torch.linspace(1, width, ROWS)[:, None]
    causal = scores.masked_fill(hidden, -torch.inf)
    full_sketch, causal_sketch = (SurvivalSketch(HEADS, int(buckets[-1]) + 1) for _ in range(2))
    variants: dict[str, Callable[[int], object]] = {
        "sketch, full rows": lambda _: full_sketch.update(scores, buckets),
        "sketch, causal rows": lambda _: causal_sketch.update(causal, buckets),
        "one pass of torch.amax": lambda _: scores.amax(dim=-1),
    }
    table = Table("method", "ns per element", "p10 to p90", "ratio", title=f"rows of {width}")
    medians = interleaved_medians(variants, copies=1, rounds=rounds)
    for name, seconds in medians.items():
        middle, low, high = (1e9 * each / scores.numel() for each in seconds)
        ratio = seconds[0] / medians["sketch, full rows"][0]
        table.add_row(name, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{ratio:.2f}")
    return table


if __name__ == "__main__":
    typer.run(main)
