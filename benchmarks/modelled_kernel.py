"""Time of the Ascend C kernel as the host model sees it: modelled, uncalibrated, never a latency of a device.

    python -m benchmarks.modelled_kernel [--write]

Prints the tables of docs/kernel.md. With --write it also renews them there, the figures behind them in
docs/results/modelled_kernel.json and the plots. About a minute. Each shape runs with exactly k kept per head (the
threshold lies between the k-th and the next score) and at theta = -inf, which is the same kernel as dense attention.
"""

from __future__ import annotations

import json
import math
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks import modelled_report
from emulator.ascendc import KernelRun, Mode, build_kernel
from emulator.ascendc.library import load
from emulator.cann import Platform
from emulator.incremental_attention import OperatorRun, kernel_for, run_operator

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "modelled_kernel.json"
HEAD_DIM = 128
ROW_BYTES = 2 * HEAD_DIM
SCALE: float = HEAD_DIM**-0.5
MODES: tuple[Mode, ...] = ("cold", "hot")
PIPES = ("MTE2", "V", "S", "MTE3")
#: Keys, query heads per KV head, correlation of their queries.
GROUPED = (
    (2048, 4, 0.0), (2048, 4, 0.9), (8192, 4, 0.0), (8192, 4, 0.9),
    (32768, 1, 0.0), (32768, 2, 0.9), (32768, 4, 0.0), (32768, 4, 0.9), (32768, 8, 0.9),
)  # fmt: skip
SYNC_ALL_MICROSECONDS = (0.0, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Step:
    """One decode step: caches and queries of 128 columns, BNSD."""

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        heads, kv_heads = self.query.shape[1], self.key.shape[1]
        return {"num_heads": heads, "num_key_value_heads": kv_heads, "scale_value": SCALE}

    def rows(self, sequence: int) -> int:
        return self.key.shape[2] if self.lengths is None else int(self.lengths[sequence])

    def scores(self, sequence: int, kv_head: int) -> Tensor:
        """Scaled scores [heads of the group, rows], float32."""
        group = self.query.shape[1] // self.key.shape[1]
        query = self.query[sequence, kv_head * group : (kv_head + 1) * group, 0].float()
        scores: Tensor = query @ self.key[sequence, kv_head, : self.rows(sequence)].float().T
        return scores * SCALE


@dataclass(frozen=True)
class Selection:
    """Thresholds [B, Hq], and how many V rows they need: the union over the heads of each KV head."""

    threshold: Tensor
    rows: int
    of_rows: int


@dataclass(frozen=True)
class Measurement:
    """One run of the kernel; times in microseconds, modelled and uncalibrated.

    Attributes:
        cold, hot: data in HBM, in the L2.
        cold_conflicts, hot_conflicts: the same with the estimated bank conflicts.
        cold_bound, hot_bound: what reading all bytes at the full rate would take.
        cold_busy, hot_busy: share of the time in which each pipe works.
        bytes_read, read_commands: by tensor, all cores together.
        rows_needed, rows_read, of_rows: V rows that a head keeps; that were read; that are valid.
        most_vector_work: of one core, over the average.
    """

    cold: float
    hot: float
    cold_conflicts: float
    hot_conflicts: float
    cold_bound: float
    hot_bound: float
    cold_busy: dict[str, float]
    hot_busy: dict[str, float]
    bytes_read: dict[str, int]
    read_commands: dict[str, int]
    rows_needed: int
    rows_read: int
    of_rows: int
    most_vector_work: float


def make_step(
    heads: int, kv_heads: int, n: int, *, dtype: torch.dtype = torch.float16, overlap: float = 0.0,
    lengths: Tensor | None = None,
) -> Step:  # fmt: skip
    """Normal q, K and V; `overlap` is the correlation of the queries of a group."""
    generator = torch.Generator().manual_seed(0)
    batch = 1 if lengths is None else len(lengths)
    own = torch.randn(batch, kv_heads, heads // kv_heads, HEAD_DIM, generator=generator)
    common = torch.randn(batch, kv_heads, 1, HEAD_DIM, generator=generator)
    query = overlap**0.5 * common + (1 - overlap) ** 0.5 * own
    key, value = (torch.randn(batch, kv_heads, n, HEAD_DIM, generator=generator).to(dtype) for _ in range(2))
    return Step(query.reshape(batch, heads, 1, HEAD_DIM).to(dtype), key, value, lengths)


def select(step: Step, density: float, *, post_softmax: bool = False) -> Selection:
    """Keeps exactly density * n elements of each head."""
    threshold = torch.empty(step.query.shape[:2])
    rows = of_rows = 0
    for sequence in range(step.query.shape[0]):
        n = step.rows(sequence)
        kept = max(1, round(density * n))
        for kv_head, own in enumerate(threshold[sequence].view(step.key.shape[1], -1)):
            scores = step.scores(sequence, kv_head)
            largest = scores.topk(kept + 1).values
            limit = largest[:, kept - 1 :].mean(1)
            rows += int((scores > limit[:, None]).any(0).sum())
            of_rows += n
            own[:] = (limit - scores.logsumexp(1)).exp() if post_softmax else limit
    return Selection(threshold, rows, of_rows)


def everything(step: Step) -> Selection:
    """theta = -inf: the same kernel as dense attention."""
    rows = step.key.shape[1] * sum(step.rows(sequence) for sequence in range(step.query.shape[0]))
    return Selection(torch.full(step.query.shape[:2], -math.inf), rows, rows)


def run(step: Step, selection: Selection, *, cores: int = 48, **attributes: Any) -> OperatorRun:
    """One call of the operator, with all checks of the host model on."""
    tensors = {"query": step.query, "key": step.key, "value": step.value, "threshold": selection.threshold}
    tensors.update(step.extra)
    if step.lengths is not None:
        tensors["actual_seq_lengths"] = step.lengths
    result = run_operator(tensors, step.attributes | attributes, platform=Platform(vector_cores=cores))
    result.run.require_clean()
    return result


def constants() -> dict[str, float]:
    """The constants of the timeline, which emulator/ascendc/machine/cost.h explains."""
    cost = load(build_kernel(kernel_for(torch.float16))).cost({})
    return {name: getattr(cost, name) for name, *_ in cost._fields_}


def measure(step: Step, selection: Selection, **options: Any) -> Measurement:
    result = run(step, selection, **options)
    traffic = {name: entry for name, entry in result.run.traffic.items() if entry.bytes_read}
    total = sum(entry.bytes_read for entry in traffic.values())
    cold, hot = result.run.timeline("cold"), result.run.timeline("hot")
    vector = [block.busy_cycles["V"] for block in cold.blocks]
    return Measurement(
        cold=cold.microseconds,
        hot=hot.microseconds,
        cold_conflicts=result.run.timeline("cold", bank_conflicts=True).microseconds,
        hot_conflicts=result.run.timeline("hot", bank_conflicts=True).microseconds,
        cold_bound=traffic_bound(total, "cold"),
        hot_bound=traffic_bound(total, "hot"),
        cold_busy={pipe: cold.busy_share(pipe) for pipe in PIPES},
        hot_busy={pipe: hot.busy_share(pipe) for pipe in PIPES},
        bytes_read={name: entry.bytes_read for name, entry in traffic.items()},
        read_commands={name: entry.read_commands for name, entry in traffic.items()},
        rows_needed=selection.rows,
        rows_read=traffic["value"].bytes_read // ROW_BYTES,
        of_rows=selection.of_rows,
        most_vector_work=max(vector) / (sum(vector) / len(vector)),
    )


def traffic_bound(count: int, mode: str) -> float:
    """Microseconds in which all cores together can read so many bytes."""
    cost = constants()
    return count / (cost[f"shared_{mode}"] * cost["gigahertz"] * 1e3)


def trace_of(kernel_run: KernelRun, mode: Mode) -> list[dict[str, Any]]:
    """What the slowest core did, as events of a Chrome trace."""
    core = max(kernel_run.timeline(mode).blocks, key=lambda block: block.end_us).core
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        kernel_run.write_trace(path, mode)
        events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X" and event["pid"] == core]


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
        "cold_ledger": modelled_report.ledger(traces["cold"]),
        "vector_work": modelled_report.vector_work(traces["cold"]),
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
        kept, dense = (asdict(measure(step, chosen)) for chosen in (select(step, 1 / 16), everything(step)))
        rows.append({"n": n, "group": group, "overlap": overlap, "kept": kept, "dense": dense})
    return rows


def ragged() -> dict[str, Any]:
    """16 sequences of 128 to 8192 keys, 8 KV heads with 4 query heads each."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(128, 8193, (16,), generator=generator, dtype=torch.int32)
    step = make_step(32, 8, 8192, overlap=0.9, lengths=lengths)
    kept, dense = (asdict(measure(step, chosen)) for chosen in (select(step, 1 / 16), everything(step)))
    return {"lengths": lengths.tolist(), "group": 4, "overlap": 0.9, "kept": kept, "dense": dense}


def paged(step: Step, rows: int) -> Step:
    """The same caches in pages of `rows` rows in a random order, for one sequence."""
    pages = step.key.shape[2] // rows
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(0))
    caches = [cache[0].unflatten(1, (pages, rows)).transpose(0, 1) for cache in (step.key, step.value)]
    key, value = (torch.empty(cache.shape, dtype=cache.dtype) for cache in caches)
    key[order], value[order] = caches
    table = order.to(torch.int32)[None]
    return Step(step.query, key, value, torch.tensor([step.key.shape[2]], dtype=torch.int32), {"block_table": table})


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
    }
    return [{"name": name, "kept": asdict(call())} for name, call in calls.items()]


def rounded(value: Any) -> Any:
    """Floats to six digits."""
    if isinstance(value, Mapping):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/kernel.md, its figures and its plots.")] = False,
) -> None:
    """Model the kernel on all shapes of docs/kernel.md."""
    console = Console(width=max(Console().width, 120))
    begin = time.perf_counter()
    paper = paper_point()
    traces = paper.pop("traces")
    results = {
        "times": "modelled, uncalibrated", "environment": {"torch": torch.__version__, "machine": platform.machine()},
        "constants": constants(), "paper": paper,
        "lengths": [row for n in (2048, 4096, 8192, 16384, 32768) for row in against_dense(n)],
        "uneven_heads": uneven_heads(), "densities": densities(), "grouped": grouped(), "ragged": ragged(),
        "modes": modes(),
    }  # fmt: skip
    results = rounded(results)
    if write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        modelled_report.plot_timeline(traces, RESULTS.with_name("modelled_timeline.png"))
        modelled_report.plot_gains(results, RESULTS.with_name("modelled_gains.png"))
        modelled_report.renew_page(results)
    for table in modelled_report.tables(results):
        console.print(table.as_rich())
    seconds = paper["functional_run_seconds"]
    console.print(f"functional run of the paper's point, all checks on: {seconds:.2f} s (goal 5)")
    console.print(f"everything: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    typer.run(main)
