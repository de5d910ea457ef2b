"""The kernel on the host model for the shapes of ``toptheta benchmark``: modelled time, bound by bytes, busy pipes.

Modelled and uncalibrated times, never a latency of a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from emulator.ascendc import Mode
from toptheta_npu.benchmark.shapes import Shape, check_for_device
from toptheta_npu.errors import TopThetaValueError

from .step import Measurement, Selection, Step, everything, make_step, measure, paged, select
from .step import run as run_step

#: Beyond so many bytes of K and V, a shape of the default table is left out: it would run for minutes.
DEFAULT_LAYER_BYTES = 1 << 30
SHAPE_COLUMNS = ("heads", "batch", "n", "k", "dtype", "block")
COLUMNS = (
    "cold", "band", "of bound", "θ=-inf", "gain", "limit", "over any dense", "launch", "gain with it", "hot",
    "gain, hot",
)  # fmt: skip
CAPTION = (
    "cold: K and V in the memory, k kept, expected constants, without the launch. band: with the optimistic and with "
    "the\npessimistic constants. of bound: share of it that the bytes read take at the full rate. gain: over the same "
    "kernel at\nθ=-inf. limit: 2/(1 + share of V rows read). over any dense: over the time that reading all of K and V "
    "takes at the\nfull rate, which no dense kernel can beat: below 1 a perfect one would be faster. launch: what "
    "comes on top of both\nkernels, and the gain then. The queries of a group select independently of each other, "
    "which is the worst case."
)
_BAR = 20
_PIPES = {"MTE2": "reads", "V": "vector", "S": "scalar", "cube MTE2": "K rows"}


@dataclass(frozen=True)
class Modelled:
    """One shape: the kernel with k kept and with everything kept; times in microseconds, modelled."""

    shape: Shape
    kept: Measurement
    dense: Measurement

    @property
    def gain(self) -> float:
        """Over the same kernel at θ = -inf, cold."""
        return self.dense.cold / self.kept.cold

    @property
    def gain_with_launch(self) -> float:
        """The same with the launch on both sides."""
        launch = self.kept.columns["expected"]["launch"]
        return (self.dense.cold + launch) / (self.kept.cold + launch)

    @property
    def gain_hot(self) -> float:
        return self.dense.hot / self.kept.hot

    @property
    def limit(self) -> float:
        """The most that leaving out V rows can gain where bytes set the pace: 2 / (1 + share of the rows read)."""
        return 2 / (1 + self.kept.rows_read / self.kept.of_rows)

    @property
    def gain_over_any_dense(self) -> float:
        """Over the time in which K and V can be read at all, which no dense kernel can beat; cold."""
        return self.dense.cold_bound / self.kept.cold


def model(shape: Shape) -> Modelled:
    """Run the kernel for one shape.

    Raises:
        TopThetaValueError: the kernel does not take the shape.
    """
    check_for_device(shape, "npu")
    step, chosen, options = _prepare(shape)
    return Modelled(shape, measure(step, chosen, **options), measure(step, everything(step), **options))


def write_trace(shape: Shape, path: Path, mode: Mode = "cold") -> None:
    """Write what every core does in the kernel as a Chrome trace, for chrome://tracing or ui.perfetto.dev."""
    step, chosen, options = _prepare(shape)
    run_step(step, chosen, **options).run.write_trace(path, mode)


def _prepare(shape: Shape) -> tuple[Step, Selection, dict[str, int]]:
    """The step, the thresholds that keep k, and attributes of the operator."""
    step = _step(shape)
    chosen = everything(step) if shape.k == shape.n else select(step, shape.k / shape.n)
    if not shape.block_size:
        return step, chosen, {}
    return paged(step, shape.block_size), chosen, {"block_size": shape.block_size}


def _step(shape: Shape) -> Step:
    rows = shape.blocks * shape.block_size or shape.n
    lengths = None if rows == shape.n else torch.full((shape.batch,), shape.n, dtype=torch.int32)
    return make_step(
        shape.num_heads, shape.num_key_value_heads, rows, batch=shape.batch, head_dim=shape.head_dim,
        dtype=shape.torch_dtype, lengths=lengths,
    )  # fmt: skip


def run(
    shapes: Sequence[Shape], console: Console, *, trace: Path | None = None, own: bool = False
) -> tuple[list[Modelled], list[tuple[Shape, str]]]:
    """Model the shapes and print them.

    Args:
        trace: where to write a Chrome trace; for a single shape.
        own: the shapes were asked for one by one, so that large ones run too.

    Returns:
        The results, and the shapes that were left out with the reason.

    Raises:
        TopThetaValueError: a trace of several shapes, or a shape that the kernel does not take.
    """
    if trace is not None and len(shapes) != 1:
        raise TopThetaValueError("--trace", "one shape", f"{len(shapes)}", "name it with --shape")
    for shape in shapes:
        check_for_device(shape, "npu")
    left_out = [] if own else [
        (shape, f"{shape.layer_bytes / 2**30:.1f} GiB of cache would run for minutes here; --shape runs it")
        for shape in shapes if shape.layer_bytes > DEFAULT_LAYER_BYTES
    ]  # fmt: skip
    skipped = {shape for shape, _ in left_out}
    wanted = [shape for shape in shapes if shape not in skipped]
    results = [model(shape) for shape in track(wanted, "Modelling", console=console, transient=True)]
    console.print(times_table(results))
    console.print(pipes_table(results))
    for shape, reason in left_out:
        console.print(f"left out: {shape}: {reason}")
    if trace is not None:
        write_trace(shapes[0], trace)
        console.print(f"Chrome trace: {trace} (open it in https://ui.perfetto.dev)")
    return results, left_out


def times_table(results: Iterable[Modelled]) -> Table:
    """Modelled times in microseconds: the bound by bytes, k kept, all kept, and the gains."""
    table = Table(
        title="Decode step on the host model: modelled, uncalibrated microseconds, not a device's",
        title_justify="left", caption=CAPTION, caption_justify="left",
    )  # fmt: skip
    for name in (*SHAPE_COLUMNS, *COLUMNS):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(*shape_cells(result.shape), *cells(as_json([result])[0]))
    return table


def shape_cells(shape: Shape) -> list[str]:
    """The cells below `SHAPE_COLUMNS`."""
    block = str(shape.block_size or "")
    return [shape.heads, str(shape.batch), str(shape.n), str(shape.k), shape.dtype, block]


def cells(row: Mapping[str, Any]) -> list[str]:
    """The cells below `COLUMNS`, from an entry of `as_json`."""
    kept, dense = row["kept"], row["dense"]
    best, worst = (kept["columns"][column]["cold"] for column in ("optimistic", "pessimistic"))
    return [
        f"{kept['cold']:.1f}", f"{best:.1f} to {worst:.1f}", f"{kept['cold_bound'] / kept['cold']:.0%}",
        f"{dense['cold']:.1f}", f"{row['gain']:.2f}",
        f"{row['limit']:.2f}", f"{row['gain_over_any_dense']:.2f}", f"{kept['columns']['expected']['launch']:g}",
        f"{row['gain_with_launch']:.2f}", f"{kept['hot']:.1f}", f"{row['gain_hot']:.2f}",
    ]  # fmt: skip


def pipes_table(results: Iterable[Modelled]) -> Table:
    """Share of the time in which each pipe works, k kept: what a shape is bound by."""
    table = Table(title="Share of the modelled time in which each pipe works, k kept", title_justify="left")
    for name in ("heads", "B", "n", "k", ""):
        table.add_column(name, justify="right")
    for name, work in _PIPES.items():
        table.add_column(f"{name} ({work})")
    for result in results:
        shape = result.shape
        about = (shape.heads, str(shape.batch), str(shape.n), str(shape.k))
        for mode, busy in (("cold", result.kept.cold_busy), ("hot", result.kept.hot_busy)):
            first = about if mode == "cold" else ("",) * len(about)
            table.add_row(*first, mode, *(_bar(busy[name]) for name in _PIPES))
    return table


def _bar(share: float) -> str:
    filled = round(_BAR * min(share, 1.0))
    return "█" * filled + "·" * (_BAR - filled) + f" {share:4.0%}"


def as_json(results: Iterable[Modelled]) -> list[dict[str, Any]]:
    """The results as plain values; every time is in microseconds and modelled."""
    derived = ("gain", "limit", "gain_over_any_dense", "gain_with_launch", "gain_hot")
    return [
        {
            "shape": asdict(result.shape), **{name: getattr(result, name) for name in derived},
            "kept": asdict(result.kept), "dense": asdict(result.dense),
        }
        for result in results
    ]  # fmt: skip
