"""The command ``toptheta``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from .._streams import standard_streams
from ..errors import TopThetaError
from .benchmark.command import command as benchmark
from .benchmark.generate import command as benchmark_generate
from .calibrate.command import command as calibrate
from .common.shell import Command, Group
from .convert.command import command as convert
from .doctor import doctor
from .evaluate.command import command as evaluate
from .evaluate.demo import command as demo
from .evaluate.plot import plot
from .find_tau import command as find_tau
from .thresholds.inspect import inspect
from .verify import verify

# rich's boxes cut the names of long options
app = typer.Typer(
    cls=Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
#: The commands by the heading that the help puts them under.
_COMMANDS = {
    "Start here": (demo, doctor),
    "Choose thresholds": (find_tau, calibrate, inspect, convert),
    "Measure what a model loses": (evaluate, plot),
    "Measure what it gains": (benchmark_generate, benchmark, verify),
}
for heading, commands in _COMMANDS.items():
    for each in commands:
        app.command(cls=Command, rich_help_panel=heading)(each)

#: The extra that brings a package.
_EXTRAS = {
    "transformers": "hf", "tokenizers": "hf", "matplotlib": "plot", "lm_eval": "eval",
    "gguf": "gguf",
}  # fmt: skip


def _print_version(wanted: bool) -> None:
    if wanted:
        from .._backends import BACKENDS, SELECTORS

        for package in ("toptheta_npu", "torch", "torch_npu"):
            try:
                print(package, version(package))
            except PackageNotFoundError:
                print(package, "not installed")
        print("backend", ",".join(f"{device}={SELECTORS[device].backend}" for device in BACKENDS))
        raise typer.Exit


@app.callback()
def _about(
    wanted: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print versions and backends."),
    ] = False,
) -> None:
    """Top-Theta attention: skip tokens by a threshold instead of top-k."""


def main(commands: Callable[[], object] = app) -> None:
    """Run the command line; an error a user can mend is one sentence, not a traceback."""
    with standard_streams():
        _run(commands)


def _run(commands: Callable[[], object]) -> None:
    try:
        commands()
    except TopThetaError as error:
        _fail(escape(str(error)))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(error.name or "")
        if extra is None:
            raise
        _fail(f"{error.name} is missing; in a clone: pip install '.\\[{extra}]'")


def _fail(message: str) -> NoReturn:
    with suppress(OSError):  # such as stderr on a full disk
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {message}", highlight=False)
    sys.exit(2)
