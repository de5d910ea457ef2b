"""Speed of the pure PyTorch decode step on this CPU, as a ratio to the best form of SDPA.

    python benchmarks/incremental_fallback.py [--rounds 40] [--json FILE]

Cold: every call works on another layer's cache, and all layers together exceed twice the last-level
cache. Hot: the same layer again and again. Beside each ratio stands the limit that reading K and the
surviving V rows alone would allow on this machine, from a measured read of K in the same rounds, and the
share of the step that the product of query and K takes.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from timing import interleaved_medians, last_level_cache_bytes
from torch import Tensor

import toptheta_npu
from toptheta_npu.fallback.incremental import _attention_scores
from toptheta_npu.fallback.layout import KeyValueCache

GOALS = {
    ("48/48", 2048, "float32"): 2.2,
    ("48/48", 2048, "bfloat16"): 4.5,
    ("32/8", 8192, "float32"): 1.1,
    ("32/8", 8192, "bfloat16"): 1.5,
}


@dataclass
class Row:
    """One shape: seconds per variant, ratios to the best SDPA."""

    heads: str
    n: int
    k: int
    dtype: str
    cache: str
    median_ms: dict[str, float]
    p90_ms: dict[str, float]
    speedup: float
    speedup_compensated: float
    score_share: float
    limit: float
    goal: float | None


def make_layers(heads: int, kv_heads: int, n: int, dtype: torch.dtype, copies: int) -> list[tuple[Tensor, Tensor]]:
    return [
        (torch.randn(1, kv_heads, n, 128).to(dtype), torch.randn(1, kv_heads, n, 128).to(dtype)) for _ in range(copies)
    ]


def thresholds_for(query: Tensor, layers: list[tuple[Tensor, Tensor]], k: int) -> list[Tensor]:
    """Per layer the exact (k+1)-th largest score of every head, so that exactly k are kept."""
    group = query.shape[1] // layers[0][0].shape[1]
    result = []
    for key, _ in layers:
        folded = query.float().view(1, key.shape[1], group, 128)
        scores = folded @ key.float().transpose(-1, -2) / 128**0.5
        result.append(scores.flatten(1, 2)[0].topk(k + 1).values[:, -1].contiguous())
    return result


def measure(heads: int, kv_heads: int, n: int, k: int, dtype: torch.dtype, cold: bool, rounds: int) -> Row:
    torch.manual_seed(0)
    query = torch.randn(1, heads, 1, 128).to(dtype)
    layer_bytes = 2 * kv_heads * n * 128 * query.element_size()
    copies = -(-min(max(800 << 20, 2 * last_level_cache_bytes()), 3 << 30) // layer_bytes) if cold else 1
    layers = make_layers(heads, kv_heads, n, dtype, copies)
    theta = thresholds_for(query, layers, k)
    means = [value.float().mean(2) for _, value in layers]
    scaled = query[:, :, 0].float() * 128**-0.5
    folded = query.view(1, kv_heads, heads // kv_heads, 128)
    variants = {
        "read K": lambda i: layers[i][0].sum(),
        "sdpa enable_gqa": lambda i: F.scaled_dot_product_attention(query, *layers[i], enable_gqa=heads != kv_heads),
        "sdpa folded": lambda i: F.scaled_dot_product_attention(folded, *layers[i]),
        "scores": lambda i: _attention_scores(scaled, KeyValueCache(*layers[i]), [(0, n)]),
        "top-theta": lambda i: toptheta_npu.incremental_attention(query, *layers[i], theta[i], sdc="none"),
        "top-theta + SDC + VMC": lambda i: toptheta_npu.incremental_attention(
            query, *layers[i], theta[i], value_mean=means[i]
        ),
    }
    times = interleaved_medians(variants, copies, rounds)
    best = min(times["sdpa enable_gqa"][0], times["sdpa folded"][0])
    _, _, _, value_rows = toptheta_npu.incremental_attention_with_stats(query, *layers[0], theta[0])
    share = value_rows.float().mean().item() / n
    name = str(dtype).removeprefix("torch.")
    return Row(
        f"{heads}/{kv_heads}", n, k, name, "cold" if cold else "hot",
        {key: 1e3 * value[0] for key, value in times.items()},
        {key: 1e3 * value[2] for key, value in times.items()},
        best / times["top-theta"][0],
        best / times["top-theta + SDC + VMC"][0],
        times["scores"][0] / times["top-theta"][0],
        best / (times["read K"][0] * (1 + share)),
        GOALS.get((f"{heads}/{kv_heads}", n, name)) if cold else None,
    )  # fmt: skip


def print_rows(rows: list[Row], console: Console) -> None:
    table = Table(title="Decode step, ratio to the best SDPA form in the same rounds (higher is faster)")
    for column in ("heads", "n", "k", "dtype", "cache", "top-θ", "+SDC+VMC", "scores", "limit", "goal", "met"):
        table.add_column(column, justify="right")
    for row in rows:
        met = "" if row.goal is None else "yes" if row.speedup >= row.goal else "no"
        goal = "" if row.goal is None else f"{row.goal:.1f}"
        table.add_row(
            row.heads, str(row.n), str(row.k), row.dtype, row.cache, f"{row.speedup:.2f}",
            f"{row.speedup_compensated:.2f}", f"{row.score_share:.0%}", f"{row.limit:.2f}", goal, met,
        )  # fmt: skip
    console.print(table)


def main(
    rounds: int = 40,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Measure the shapes of the goals, cold and hot."""
    shapes = [(48, 48, 2048, 128), (32, 8, 8192, 128)]
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    with torch.no_grad():
        rows = [measure(*shape, dtype, cold, rounds) for shape in shapes for dtype in dtypes for cold in (True, False)]
    console = Console(width=max(Console().width, 100))
    print_rows(rows, console)
    environment = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
    environment["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    console.print(environment)
    if json_file is not None:
        json_file.write_text(json.dumps({"environment": environment, "rows": [asdict(r) for r in rows]}, indent=1))


if __name__ == "__main__":
    typer.run(main)
