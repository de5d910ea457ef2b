"""``toptheta benchmark``: is it faster here, where, and by how much?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from ..._files import check_writable, write_atomically
from ...errors import TopThetaCombinationError, TopThetaValueError
from ..common import printing
from ..common.devices import check_device
from .model import read_given, run_on_model

if TYPE_CHECKING:
    from ...timing.measure import ShapeResult
    from ...timing.shapes import Shape

_CACHES: dict[str, tuple[Literal["cold", "hot"], ...]] = {
    "both": ("cold", "hot"), "cold": ("cold",), "hot": ("hot",),
}  # fmt: skip
_MODEL = "host-model"
_ROUNDS_ON_CPU, _ROUNDS = 15, 50
MAX_ROUNDS = 100_000


def benchmark(
    device: Annotated[str | None, typer.Option(help="cpu, cuda or npu; in a clone also host-model.")] = None,
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
    sweep: Annotated[str | None, typer.Option(help="Shapes of growing lengths or densities.")] = None,
    cache: Annotated[str, typer.Option(help="cold: beyond the last-level cache; hot; or both.")] = "both",
    rounds: Annotated[int | None, typer.Option(min=1, max=MAX_ROUNDS, help="Interleaved rounds per shape.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
    constants: Annotated[
        Path | None, typer.Option(help="With --device host-model: a file of toptheta verify in place of its constants.")
    ] = None,
) -> None:
    """Compare Top-θ decode attention with the best dense attention of a device, cold and hot.

    Every answer is checked before it is timed. Ratios are formed inside interleaved rounds.
    """

    console = printing.console()
    if cache not in _CACHES:
        raise TopThetaValueError("--cache", f"one of {', '.join(_CACHES)}", repr(cache))
    if device == _MODEL:
        _check_for_model(rounds)
        given = read_given(constants)
        shapes, own = choose_shapes("npu", shape or [], config, n, batch, k, sweep, query_tokens)
        prepare_outputs(json_file)
        run_on_model(console, shapes, _CACHES[cache], given, json_file, own=own)
        return
    device = check_device(device, (_MODEL,))
    if constants is not None:
        raise TopThetaCombinationError("--constants", "needs", f"--device {_MODEL}", "leave it out")
    shapes, own = choose_shapes(device, shape or [], config, n, batch, k, sweep, query_tokens)
    prepare_outputs(json_file)
    rounds = rounds or (_ROUNDS_ON_CPU if device == "cpu" else _ROUNDS)
    results = run(console, shapes, device, rounds, cache, skip_large=not own)
    finish(console, results, device, {"rounds": rounds, "cache": cache}, json_file)


def _check_for_model(rounds: int | None) -> None:
    if rounds is not None:
        raise TopThetaCombinationError("--rounds", "excludes", f"--device {_MODEL}", "leave it out")


def choose_shapes(
    device: str,
    texts: list[str],
    config: str | None,
    lengths: list[int] | None,
    batch: int | None,
    k: int | None,
    sweep: str | None,
    query_tokens: int | None = None,
) -> tuple[list[Shape], bool]:
    """Choose the shapes to compare, and tell whether the user chose them.

    Raises:
        TopThetaValueError: options that exclude each other, or a shape that cannot be.
    """  # fmt: skip
    from dataclasses import replace

    from ...timing.shapes import SWEEPS, check_for_device, default_shapes, parse_shape, shape_from_config

    if config is None and (lengths or batch is not None):
        option = "--n" if lengths else "--batch"
        raise TopThetaCombinationError(option, "needs", "--config", "name one, or say it in --shape")
    if sweep is not None and (texts or config):
        raise TopThetaCombinationError("--sweep", "excludes", "--shape and --config", "leave it out, or them")
    if sweep is not None and sweep not in SWEEPS:
        raise TopThetaValueError("--sweep", f"one of {', '.join(SWEEPS)}", repr(sweep))
    shapes = [parse_shape(text) for text in texts]
    if config is not None:
        shapes += [
            shape_from_config(config, length, batch=1 if batch is None else batch) for length in lengths or [8192]
        ]
    own = bool(shapes)
    if not own:
        shapes = list(SWEEPS[sweep](device) if sweep else default_shapes(device))
    given = {"k": k, "query_tokens": query_tokens}
    of_every: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if of_every:
        shapes = list(dict.fromkeys(replace(each, **of_every) for each in shapes))
    for each in shapes:
        check_for_device(each, device)
    return shapes, own


def prepare_outputs(json_file: Path | None) -> None:
    """Miss a place to write to now and not after the comparison."""
    if json_file is not None:
        check_writable(json_file, "--json")


def run(
    console: Console, shapes: list[Shape], device: str, rounds: int, cache: str, *, skip_large: bool
) -> list[ShapeResult]:
    """Compare all shapes, and print each when it is finished."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ...timing import report
    from ...timing.environment import environment
    from ...timing.measure import compare

    console.print(escape(", ".join(f"{name}: {value}" for name, value in environment(device).items())), soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(shapes))

        def show(result: ShapeResult) -> None:
            if result.skipped:
                bar.console.print(f"[yellow]skipped:[/yellow] {escape(result.skipped)}\n", soft_wrap=True)
            else:
                printing.print_table(bar.console, report.details(result))
            bar.advance(task)

        return compare(
            shapes, device, rounds=rounds, caches=_CACHES[cache], skip_large=skip_large, finished=show,
            progress=lambda _, shape: bar.update(task, description=escape(str(shape))),
        )  # fmt: skip


def finish(
    console: Console,
    results: list[ShapeResult],
    device: str,
    settings: dict[str, Any],
    json_file: Path | None,
) -> None:
    """Print the summary, and write JSON; refuse an emulated device after the JSON.

    Raises:
        TopThetaNotImplementedError: the device is emulated, so that there are no times.
    """  # fmt: skip
    from ...timing import report
    from ...timing.clocks import is_emulated, refuse_emulated
    from ...timing.environment import environment

    if not is_emulated(device):
        printing.print_table(console, report.summary(results, device))
        if (int8 := report.int8_summary(results)) is not None:
            printing.print_table(console, int8)
    if json_file is not None:
        write_atomically(json_file, report.as_json(results, environment(device), settings) + "\n")
        console.print(f"{json_file} written.")
    refuse_emulated(device)
