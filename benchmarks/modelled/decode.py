"""The kernel on the host model for the shapes of ``toptheta benchmark``: modelled time, bound by bytes, busy pipes.

Modelled and uncalibrated times, never a latency of a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from emulator.ascendc import COLUMNS as COLUMNS_OF_CONSTANTS
from emulator.ascendc import Mode
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.timing.shapes import Shape, check_for_device

from .calls import MAX_LAYER_BYTES, Call, Modelled, model, run_call
from .step import EXPECTED

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
    "comes on top of both\nkernels, and the gain then, with its least and most. The queries of a group select "
    "independently of each other, which is the worst case."
)
_BAR = 20
_PIPES = {"MTE2": "reads", "V": "vector", "S": "scalar", "cube MTE2": "K rows"}


def write_trace(shape: Shape, path: Path, mode: Mode = "cold") -> None:
    """Write what every core does in the kernel as a Chrome trace, for chrome://tracing or ui.perfetto.dev."""
    run_call(Call(shape)).run.write_trace(path, mode)


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
        for shape in shapes if shape.layer_bytes > MAX_LAYER_BYTES
    ]  # fmt: skip
    skipped = {shape for shape, _ in left_out}
    wanted = [shape for shape in shapes if shape not in skipped]
    results = [model(Call(shape)) for shape in track(wanted, "Modelling", console=console, transient=True)]
    console.print(times_table(results))
    console.print(pipes_table(results))
    for shape, reason in left_out:
        console.print(f"left out: {shape}: {reason}")
    if trace is not None:
        write_trace(shapes[0], trace)
        console.print(f"Chrome trace: {trace} (open it in https://ui.perfetto.dev)")
    return results, left_out


def times_table(results: Iterable[Modelled]) -> Table:
    """Tabulate modelled times in microseconds: the bound by bytes, k kept, all kept, and the gains."""
    table = Table(
        title="Decode step on the host model: modelled, uncalibrated microseconds, not a device's",
        title_justify="left", caption=CAPTION, caption_justify="left",
    )  # fmt: skip
    for name in (*SHAPE_COLUMNS, *COLUMNS):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(*shape_cells(result.shape), *cells(result))
    return table


def shape_cells(shape: Shape) -> list[str]:
    """Format the cells below `SHAPE_COLUMNS`."""
    block = str(shape.block_size or "")
    return [_heads(shape), str(shape.batch), str(shape.n), str(shape.k), shape.dtype, block]


def _heads(shape: Shape) -> str:
    return shape.heads + (f", {shape.query_tokens} tokens" if shape.query_tokens > 1 else "")


def cells(result: Modelled) -> list[str]:
    """Format the cells below `COLUMNS`."""
    kept, dense = result.kept, result.dense
    return [
        f"{kept.cold:.1f}", band_cell(result, "cold"), f"{kept.bound['cold'] / kept.cold:.0%}", f"{dense.cold:.1f}",
        f"{result.gain('cold'):.2f}", f"{result.limit:.2f}", f"{result.gain_over_any_dense:.2f}",
        f"{kept.launch[EXPECTED]:g}", launch_cell(result, "cold"), f"{kept.hot:.1f}", f"{result.gain('hot'):.2f}",
    ]  # fmt: skip


def band_cell(result: Modelled, mode: Mode) -> str:
    """Format the time with the optimistic and with the pessimistic constants."""
    best, _, worst = result.kept.times[mode]
    return f"{best:.1f} to {worst:.1f}"


def launch_cell(result: Modelled, mode: Mode) -> str:
    """Format the gain with the launch on both sides: expected, and least and most over the columns of constants."""
    gains = [result.gain_with_launch(mode, column) for column in range(len(COLUMNS_OF_CONSTANTS))]
    return f"{gains[EXPECTED]:.2f} ({min(gains):.2f} to {max(gains):.2f})"


def pipes_table(results: Iterable[Modelled]) -> Table:
    """Tabulate the share of the time in which each pipe works, k kept. It shows what a shape is bound by."""
    table = Table(title="Share of the modelled time in which each pipe works, k kept", title_justify="left")
    for name in ("heads", "B", "n", "k", ""):
        table.add_column(name, justify="right")
    for name, work in _PIPES.items():
        table.add_column(f"{name} ({work})")
    for result in results:
        shape = result.shape
        about = (_heads(shape), str(shape.batch), str(shape.n), str(shape.k))
        for mode, busy in result.kept.busy.items():
            first = about if mode == "cold" else ("",) * len(about)
            table.add_row(*first, mode, *(_bar(busy[name]) for name in _PIPES))
    return table


def _bar(share: float) -> str:
    filled = round(_BAR * min(share, 1.0))
    return "█" * filled + "·" * (_BAR - filled) + f" {share:4.0%}"


def as_json(results: Iterable[Modelled]) -> list[dict[str, Any]]:
    """Convert the results to plain values. Every time is in microseconds and modelled."""
    return [
        {
            "shape": asdict(result.shape), "gain": result.gain("cold"), "gain_hot": result.gain("hot"),
            "limit": result.limit, "gain_over_any_dense": result.gain_over_any_dense,
            "gain_with_launch": result.gain_with_launch("cold"),
            "kept": asdict(result.kept), "dense": asdict(result.dense),
        }
        for result in results
    ]  # fmt: skip
