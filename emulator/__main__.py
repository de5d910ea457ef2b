"""Emulated NPUs for torch_npu: python -m emulator setup | compile SOURCE | run COMMAND."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .acl import (
    ProjectError,
    SetupError,
    build_libraries,
    build_program,
    default_op_package,
    find_project,
    install_torch_npu,
)
from .acl.environment import REMOVED, emulator_variables
from .acl.settings import NAMES, TORCH_NPU_PLACE
from .compile_cache import CompileError

app = typer.Typer(help="Runs PyTorch programs for Ascend NPUs on this machine's CPU, over emulated devices.",
                  no_args_is_help=True, add_completion=False)  # fmt: skip
console = Console(stderr=True, highlight=False, soft_wrap=True)


Project = Annotated[
    Path | None,
    typer.Option("--project", help="File of an operator package; emulator.json of this folder if it has one."),
]
Soc = Annotated[str | None, typer.Option(help="Name of the SoC, which decides the number of cores: Ascend910B1.")]
Devices = Annotated[int | None, typer.Option(min=1, max=64, help="Devices: 1.")]
MemoryMb = Annotated[int | None, typer.Option(min=1, max=1 << 20, help="Memory of each device: 4096.")]
VectorCores = Annotated[int | None, typer.Option(min=1, max=1024, help="Vector cores of a device; those of the SoC.")]
Asynchronous = Annotated[
    bool | None, typer.Option("--async/--sync", help="A worker thread for each stream, or launches that wait.")
]
Checks = Annotated[
    bool | None, typer.Option("--checks/--no-checks", help="Check initialisation and order of memory accesses.")
]
Fill = Annotated[str | None, typer.Option(help="Byte that fresh device memory is filled with, such as 0xFF.")]
Trace = Annotated[
    bool | None, typer.Option("--trace/--no-trace", help="A line on stderr for each allocation, copy, launch, error.")
]
Defect = Annotated[str | None, typer.Option(help="A planted defect, from the table of ascendc/README.md.")]


class _Announcer(logging.Handler):
    """Tells what is being built, and before the first of it that this happens once."""

    announced = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.announced:
            console.print("The emulated devices are made first: once, in about a minute on two cores.")
        self.announced = True
        console.print(f"  {record.getMessage()}", markup=False)


@app.command()
def setup(project: Project = None) -> None:
    """Install torch_npu in a folder of its own and build everything; what is there already is kept."""
    libraries, package = _prepare(project)
    console.print(f"libraries   {libraries}\noperators   {package or 'none'}\ntorch_npu   {TORCH_NPU_PLACE}")
    example = "import torch, torch_npu; print(torch.ones(2).npu())"
    console.print(f'\nNext: [bold]python -m emulator run python -c "{example}"')


@app.command("compile")
def compile_program(
    source: Annotated[Path, typer.Argument(help="A program in C++ that calls the operator by aclnn.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The program.")],
    project: Project = None,
) -> None:
    """Compile SOURCE against the emulator's ACL and the operator package; `run` then runs the program."""
    _, package = _prepare(project)
    if package is None:
        raise typer.BadParameter("expected the operator package that the program calls, got none; name its --project")
    try:
        build_program(source, output, package)
    except CompileError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(
    context: typer.Context, project: Project = None, soc: Soc = None, devices: Devices = None,
    memory_mb: MemoryMb = None, vector_cores: VectorCores = None, asynchronous: Asynchronous = None,
    checks: Checks = None, fill: Fill = None, trace: Trace = None, defect: Defect = None,
) -> None:  # fmt: skip
    """Run COMMAND in the emulator's environment; `python` is the one that runs the emulator."""
    options = locals()
    settings = {name: options[name] for name in NAMES if options[name] is not None}
    if not context.args:
        raise typer.BadParameter("expected a command, such as: python -m emulator run python -m pytest tests/npu")
    if context.args[0].startswith("-"):
        raise typer.BadParameter(f"expected an option of the emulator before the command, got {context.args[0]}")
    variables = {name: value for name, value in os.environ.items() if name not in REMOVED}
    variables |= emulator_variables(*_prepare(project), settings)
    try:
        os.execvpe(context.args[0], context.args, variables)
    except FileNotFoundError:
        raise typer.BadParameter(f"expected an installed command, got {context.args[0]!r}") from None


def _prepare(file: Path | None) -> tuple[Path, Path | None]:
    """Find the folders of the libraries and of the operator package, if any; build those that are not there yet."""
    announcer, started = _Announcer(), time.monotonic()
    logger = logging.getLogger("emulator")
    logger.addHandler(announcer)
    logger.setLevel(logging.INFO)
    try:
        project = find_project(file)
        install_torch_npu()
        made = build_libraries(), None if project is None else default_op_package(project)
    except (CompileError, ProjectError, SetupError, FileNotFoundError) as error:
        console.print(f"[red]{error.__class__.__name__}[/]: ", end="")
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None
    if announcer.announced:
        console.print(f"  ready after {time.monotonic() - started:.0f} s")
    return made


if __name__ == "__main__":
    app(prog_name="python -m emulator")
