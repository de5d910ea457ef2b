"""``toptheta benchmark``: is it faster here, where, and by how much?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from ..._checks import check_choice
from ..._files import check_writable, write_atomically
from ...errors import TopThetaCombinationError
from ..common import printing
from ..common.devices import check_device
from ..common.options import command as make_command
from ..common.progress import Bars
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


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Device to run on: cpu, cuda or npu; in a clone also host-model.")
    ] = None
    shape: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="Shape to time: heads=32/8,n=8192 and any of k, batch, head_dim, dtype, block_size, cache=int8 and "
            "query_tokens. Repeatable. Default: a table of shapes.",
        ),
    ] = dataclasses.field(default_factory=list)
    k: Annotated[
        int | None, typer.Option("--k", metavar="INT", help="Elements to keep per head and token, in every shape.")
    ] = None
    query_tokens: Annotated[
        int | None, typer.Option(metavar="INT", help="Query tokens per sequence and step, up to 16, in every shape.")
    ] = None
    cache: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="CPU or GPU caches to time with: cold (K and V beyond the last level), hot, or both."
        ),
    ] = "both"
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_ROUNDS, metavar="INT", help="Rounds per shape. Default: 15 on a CPU, else 50."),
    ] = None
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Where to write all figures as JSON.")
    ] = None
    constants: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output of toptheta verify whose constants host-model uses.")
    ] = None


def benchmark(options: Options) -> None:
    """Time the attention of a decode step, without a model.

    It is compared with the best dense attention of the device. Every answer is checked before it is timed.
    """
    console = printing.console()
    check_choice("--cache", options.cache, tuple(_CACHES))
    caches, json_file, own = _CACHES[options.cache], options.json_file, bool(options.shape)
    if options.device == _MODEL:
        if options.rounds is not None:
            raise TopThetaCombinationError("--rounds", "excludes", f"--device {_MODEL}", "leave it out")
        given = read_given(options.constants)
        shapes = choose_shapes("npu", options)
        prepare_outputs(json_file)
        run_on_model(console, shapes, caches, given, json_file, own=own)
        return
    device = check_device(options.device, (_MODEL,))
    if options.constants is not None:
        raise TopThetaCombinationError("--constants", "needs", f"--device {_MODEL}", "leave it out")
    shapes = choose_shapes(device, options)
    prepare_outputs(json_file)
    rounds = options.rounds or (_ROUNDS_ON_CPU if device == "cpu" else _ROUNDS)
    results = run(console, shapes, device, rounds, caches, skip_large=not own)
    finish(console, results, device, {"rounds": rounds, "cache": options.cache}, json_file)


def choose_shapes(device: str, options: Options) -> list[Shape]:
    """Choose the shapes to compare: those that the user names, or the table of the device.

    Raises:
        TopThetaValueError: a shape that cannot be.
    """
    from ...timing.shapes import check_for_device, default_shapes, parse_shape

    shapes = [parse_shape(text) for text in options.shape] or list(default_shapes(device))
    given = {"k": options.k, "query_tokens": options.query_tokens}
    of_every: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if of_every:
        shapes = list(dict.fromkeys(dataclasses.replace(each, **of_every) for each in shapes))
    for each in shapes:
        check_for_device(each, device)
    return shapes


def prepare_outputs(json_file: Path | None) -> None:
    """Miss a place to write to now and not after the comparison."""
    if json_file is not None:
        check_writable(json_file, "--json")


def run(
    console: Console, shapes: list[Shape], device: str, rounds: int, caches: Sequence[str], *, skip_large: bool
) -> list[ShapeResult]:
    """Compare all shapes, and print each when it is finished."""
    from ...timing import report
    from ...timing.environment import environment
    from ...timing.measure import compare

    def show(result: ShapeResult) -> None:
        if result.skipped:
            console.print(f"[yellow]skipped:[/yellow] {escape(result.skipped)}\n")
        else:
            printing.print_table(console, report.details(result))
        done.append(result)
        advance(len(done))

    done: list[ShapeResult] = []
    console.print(escape(", ".join(f"{name}: {value}" for name, value in environment(device).items())))
    with Bars() as bars:
        advance = bars.add("comparing", len(shapes))
        return compare(shapes, device, rounds=rounds, caches=caches, skip_large=skip_large, finished=show)


def finish(
    console: Console, results: list[ShapeResult], device: str, settings: dict[str, Any], json_file: Path | None
) -> None:
    """Print the summary, and write JSON; refuse an emulated device after the JSON.

    Raises:
        TopThetaNotImplementedError: the device is emulated, so that there are no times.
    """
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


#: The command of `benchmark`.
command = make_command(Options, benchmark)
