"""Emulated NPUs for torch_npu: python -m emulator setup | env | compile SOURCE | run COMMAND."""

from __future__ import annotations

import logging
import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .acl import SetupError, build_libraries, build_program, default_op_package, install_torch_npu
from .acl.environment import REMOVED, emulator_variables
from .acl.settings import TORCH_NPU_PLACE
from .compile_cache import CompileError

app = typer.Typer(help="Runs PyTorch programs for Ascend NPUs on this machine's CPU, over emulated devices.",
                  no_args_is_help=True, add_completion=False)  # fmt: skip
console = Console(stderr=True, highlight=False, soft_wrap=True)


class _Announcer(logging.Handler):
    """Tells what is being built, and before the first of it that this happens once."""

    announced = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.announced:
            console.print("The emulated devices are made first: once, in about a minute on two cores.")
        self.announced = True
        console.print(f"  {record.getMessage()}", markup=False)


@app.command()
def setup() -> None:
    """Install torch_npu in a folder of its own and build everything; what is there already is kept."""
    libraries, package = _prepare()
    console.print(f"libraries   {libraries}\noperators   {package}\ntorch_npu   {TORCH_NPU_PLACE}")
    example = "import torch, torch_npu; print(torch.ones(2).npu())"
    console.print(f'\nNext: [bold]python -m emulator run python -c "{example}"')


@app.command()
def env() -> None:
    """Print the lines that turn a shell into the emulator's environment: eval "$(python -m emulator env)"."""
    libraries, package = _prepare()
    for name in REMOVED:
        print(f"unset {name}")
    for name, value in emulator_variables(libraries, package).items():
        print(f"export {name}={shlex.quote(value)}")


@app.command("compile")
def compile_program(
    source: Annotated[Path, typer.Argument(help="A program in C++ that calls the operator by aclnn.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The program.")],
) -> None:
    """Compile SOURCE against the emulator's ACL and the operator package; `run` then runs the program."""
    _, package = _prepare()
    try:
        build_program(source, output, package)
    except CompileError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(context: typer.Context) -> None:
    """Run COMMAND in the emulator's environment; `python` is the one that runs the emulator."""
    if not context.args:
        raise typer.BadParameter("expected a command, such as: python -m emulator run python -m pytest tests/npu")
    libraries, package = _prepare()
    variables = {name: value for name, value in os.environ.items() if name not in REMOVED}
    variables |= emulator_variables(libraries, package)
    try:
        os.execvpe(context.args[0], context.args, variables)
    except FileNotFoundError:
        raise typer.BadParameter(f"expected an installed command, got {context.args[0]!r}") from None


def _prepare() -> tuple[Path, Path]:
    """Find the folders of the libraries and of the operator package; build those that are not there yet."""
    announcer, started = _Announcer(), time.monotonic()
    logger = logging.getLogger("emulator")
    logger.addHandler(announcer)
    logger.setLevel(logging.INFO)
    try:
        install_torch_npu()
        made = build_libraries(), default_op_package()
    except (CompileError, SetupError, FileNotFoundError) as error:
        console.print(f"[red]{error.__class__.__name__}[/]: ", end="")
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None
    if announcer.announced:
        console.print(f"  ready after {time.monotonic() - started:.0f} s")
    return made


if __name__ == "__main__":
    app(prog_name="python -m emulator")
