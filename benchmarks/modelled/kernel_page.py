"""Time of the Ascend C kernel as the host model sees it: modelled, uncalibrated, never a latency of a device.

    python -m benchmarks.modelled.kernel_page [--write]

Prints the tables of docs/kernel.md. With --write it also renews them there, the figures behind them in
docs/results/modelled_kernel.json and the plots. About a minute. Each shape runs with exactly k kept per head (the
threshold lies between the k-th and the next score) and at theta = -inf, which is the same kernel as dense attention.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from emulator.ascendc import COLUMNS, Mode
from emulator.incremental_attention import WITHOUT_TILING_POINTERS, kernel_for

from . import kernel_tables
from .step import (
    MODES,
    Measurement,
    constants,
    everything,
    make_step,
    measure,
    paged,
    run,
    select,
    trace_of,
)

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "modelled_kernel.json"
#: Keys, query heads per KV head, correlation of their queries.
GROUPED = (
    (2048, 4, 0.0), (2048, 4, 0.9), (8192, 4, 0.0), (8192, 4, 0.9),
    (32768, 1, 0.0), (32768, 2, 0.9), (32768, 4, 0.0), (32768, 4, 0.9), (32768, 8, 0.0), (32768, 8, 0.9),
)  # fmt: skip
SYNC_ALL_MICROSECONDS = (0.0, 1.0, 1.5, 2.0)


def paper_point() -> dict[str, Any]:
    """48 heads, 2048 keys, 128 kept."""
    step = make_step(48, 48, 2048)
    kept = select(step, 128 / 2048)
    run(step, kept)  # compiles the kernel, if need be
    begin = time.perf_counter()
    result = run(step, kept)
    seconds = time.perf_counter() - begin
    traces = {mode: trace_of(result.run, mode) for mode in MODES}
    return {
        "k": 128, "n": 2048, "functional_run_seconds": seconds,
        "kept": asdict(measure(step, kept)), "dense": asdict(measure(step, everything(step))),
        "cold_ledger": kernel_tables.ledger(traces["cold"]),
        "vector_work": kernel_tables.vector_work(traces["cold"]),
        "traces": traces,
    }  # fmt: skip


def against_dense(n: int, heads: int = 48, cores: int = 48) -> list[dict[str, Any]]:
    """k = n/16 and k = 256 against the same kernel at theta = -inf."""
    step = make_step(heads, heads, n)
    dense = asdict(measure(step, everything(step), cores=cores))
    return [
        {"n": n, "k": k, "kept": asdict(measure(step, select(step, k / n), cores=cores)), "dense": dense}
        for k in sorted({n // 16, 256}, reverse=True)
    ]


def uneven_heads() -> list[dict[str, Any]]:
    """32 heads on 48 cores, which takes a SyncAll, against 48 heads, which takes none."""
    even, uneven = (make_step(heads, heads, 2048) for heads in (48, 32))
    even_run, uneven_run = (run(step, select(step, 128 / 2048)).run for step in (even, uneven))
    rows = []
    for sync_all in SYNC_ALL_MICROSECONDS:
        row: dict[str, Any] = {"sync_all": sync_all}
        for mode in MODES:
            row[f"{mode}_32"] = uneven_run.timeline(mode, sync_all_microseconds=sync_all).microseconds
            row[f"{mode}_48"] = even_run.timeline(mode, sync_all_microseconds=sync_all).microseconds
        rows.append(row)
    return rows


def densities() -> list[dict[str, Any]]:
    """48 heads, 8192 keys; also with the path through single V rows forced, where the kernel would go dense."""
    step = make_step(48, 48, 8192)
    dense = asdict(measure(step, everything(step)))
    rows = []
    for density in (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 1):
        kept = select(step, density) if density < 1 else everything(step)
        row = {"density": density, "kept": asdict(measure(step, kept)), "dense": dense}
        rows.append(row | {"gathered": asdict(measure(step, kept, path="gather"))})
    return rows


def grouped() -> list[dict[str, Any]]:
    """8 KV heads whose query heads select for themselves and read the union; independent queries, or much alike."""
    rows = []
    for n, group, overlap in GROUPED:
        step = make_step(8 * group, 8, n, overlap=overlap)
        chosen = select(step, 1 / 16)
        rows.append({
            "n": n, "group": group, "overlap": overlap, "kept": asdict(measure(step, chosen)),
            "dense": asdict(measure(step, everything(step))), "vector": asdict(measure(step, chosen, cube=False)),
        })  # fmt: skip
    return rows


def ragged() -> dict[str, Any]:
    """16 sequences of 128 to 8192 keys, 8 KV heads with 4 query heads each."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(128, 8193, (16,), generator=generator, dtype=torch.int32)
    step = make_step(32, 8, 8192, overlap=0.9, lengths=lengths)
    chosen = select(step, 1 / 16)
    return {
        "lengths": lengths.tolist(), "group": 4, "overlap": 0.9, "kept": asdict(measure(step, chosen)),
        "dense": asdict(measure(step, everything(step))), "vector": asdict(measure(step, chosen, cube=False)),
    }  # fmt: skip


def modes() -> list[dict[str, Any]]:
    """Other ways to call the kernel at the paper's point."""
    step = make_step(48, 48, 2048)
    kept = select(step, 128 / 2048)
    bfloat16 = make_step(48, 48, 2048, dtype=torch.bfloat16)
    mean = {"value_mean": step.value.float().mean(2)}
    lengths = torch.tensor([2048], dtype=torch.int32)
    calls: dict[str, Callable[[], Measurement]] = {
        "float16": lambda: measure(step, kept),
        "bfloat16": lambda: measure(bfloat16, select(bfloat16, 128 / 2048)),
        "float16, VMC and statistics": lambda: measure(replace(step, extra=mean), kept, with_stats=True),
        "float16, sdc='none'": lambda: measure(step, kept, sdc="none"),
        "float16, post-softmax": lambda: measure(
            step, select(step, 128 / 2048, post_softmax=True), placement="post_softmax"
        ),
        "float16, lengths on the device": lambda: measure(replace(step, lengths=lengths), kept),
        "float16, pages of 128 rows": lambda: measure(paged(step, 128), kept, block_size=128),
        "float16, pages of 16 rows": lambda: measure(paged(step, 16), kept, block_size=16),
        "float16, tiling data by DMA, as with CANN 8.1": lambda: measure(
            step, kept, kernel=kernel_for(torch.float16, flags=[WITHOUT_TILING_POINTERS])
        ),
    }
    return [{"name": name, "kept": asdict(call())} for name, call in calls.items()]


def rounded(value: Any) -> Any:
    """Floats to six digits."""
    if isinstance(value, Mapping):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def collect() -> tuple[dict[str, Any], dict[Mode, list[dict[str, Any]]]]:
    """All results, and the traces of the slowest core at the paper's point."""
    paper = paper_point()
    traces = paper.pop("traces")
    results = {
        "times": "modelled, uncalibrated", "environment": {"torch": torch.__version__, "machine": platform.machine()},
        "constants": {column: constants(column) for column in COLUMNS}, "paper": paper,
        "lengths": [row for n in (2048, 4096, 8192, 16384, 32768) for row in against_dense(n)],
        "uneven_heads": uneven_heads(), "densities": densities(), "grouped": grouped(), "ragged": ragged(),
        "modes": modes(),
    }  # fmt: skip
    return rounded(results), traces


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/kernel.md, its figures and its plots.")] = False,
) -> None:
    """Model the kernel on all shapes of docs/kernel.md."""
    console = Console(width=max(Console().width, 120))
    begin = time.perf_counter()
    results, traces = collect()
    if write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        kernel_tables.plot_timeline(traces, RESULTS.with_name("modelled_timeline.png"))
        kernel_tables.plot_gains(results, RESULTS.with_name("modelled_gains.png"))
        kernel_tables.renew_page(results)
    console.print("Every time is modelled and uncalibrated, in microseconds; none is a device's.")
    for table in kernel_tables.tables(results).values():
        console.print(table.as_rich())
    seconds = results["paper"]["functional_run_seconds"]
    console.print(f"functional run of the paper's point, all checks on: {seconds:.2f} s (goal 5)")
    console.print(f"everything: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    typer.run(main)
