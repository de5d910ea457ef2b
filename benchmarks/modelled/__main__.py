"""``python -m benchmarks.modelled``: the kernel on the host model, for any shape, without hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from toptheta_npu import cli
from toptheta_npu._files import check_writable, write_atomically
from toptheta_npu.cli.benchmark.command import choose_shapes, prepare_outputs
from toptheta_npu.timing.report import one_row_a_line

from . import decode

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def modelled(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="heads=32/8,n=8192 and any of k, batch, head_dim, dtype, block_size, cache=int8, query_tokens."
        ),
    ] = None,
    config: Annotated[str | None, typer.Option(help="Shapes of a transformers config: file, folder or name.")] = None,
    n: Annotated[list[int] | None, typer.Option("--n", help="Keys, with --config.  [default: 8192]")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences, with --config.  [default: 1]")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Kept per head and token, for every shape.")] = None,
    query_tokens: Annotated[
        int | None, typer.Option(help="Query tokens of each sequence in a step, up to 16, for every shape.")
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="lengths or densities: the shapes of a plot.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Chrome trace, for a single shape.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Model a decode step of the Ascend C kernel: its time, its bound by bytes, and what each pipe does.

    Every time is modelled and uncalibrated; none is a latency of a device.
    """
    console = Console(highlight=False, width=max(Console().width, 176))
    shapes, own = choose_shapes("npu", shape or [], config, n, batch, k, sweep, query_tokens)
    prepare_outputs(json_file)
    if trace is not None:
        check_writable(trace, "--trace")
    results, left_out = decode.run(shapes, console, trace=trace, own=own)
    if json_file is not None:
        skipped = {str(shape): reason for shape, reason in left_out}
        stored = {"unit": "modelled, uncalibrated microseconds", "results": decode.as_json(results)}
        write_atomically(json_file, one_row_a_line(stored | {"left_out": skipped}) + "\n")
        console.print(f"{json_file} written.")


if __name__ == "__main__":
    cli.main(app)
