"""``toptheta doctor``: what works here, what an NPU still needs, and what to type. Of a model: what it can gain."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape

from .._findings import Finding, as_finding
from .._info import BackendInfo, backend_info
from ..cpu.backend import CPU_SELECTOR
from ..cpu.info import what_runs
from ..errors import TopThetaBackendError, TopThetaCombinationError, TopThetaError
from ..npu.environment import has_emulated_devices
from ..triton.backend import CUDA_SELECTOR, what_cuda_runs
from .doctor_model import doctor_model

_TRANSFORMERS = ("5", "in a clone: pip install '.[hf]'")
#: What the choice of a backend means for NPU tensors.
_RUNS = {
    "npu": "the op package, and raise an error where it cannot run",
    "auto": "the op package, or the PyTorch fallback where it cannot run",
    "fallback": "the PyTorch fallback",
}


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="Folder of a transformers model: show what a threshold can gain with it at most."
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(metavar="INT", help="Tokens before the new one, with MODEL. Repeatable. Default: 2048 to 131072."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="INT", help="Sequences in a batch, with MODEL. Repeatable. Default: 1, 8 and 32."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, such as for a bug report.")] = False,
    probe: Annotated[bool, typer.Option(help="Import torch_npu in a separate process and ask it for devices.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 unless NPU tensors can run.")] = False,
) -> None:
    """Show what works here, or what MODEL can gain at most.

    The exit status is 0 if the operators run on the CPU; with --strict, only if NPU tensors can run too.

    With MODEL, compare the bytes of the KV cache with those of the weights. No weights are loaded.
    """
    if model is not None:
        if strict:
            raise TopThetaCombinationError("--strict", "excludes", "MODEL", "leave one of them out")
        doctor_model(model, length or [], batch or [], as_json)
        return
    for name, given in (("--length", length), ("--batch", batch)):
        if given:
            raise TopThetaCombinationError(name, "needs", "MODEL", "name the folder of a model")
    here, info = what_works(), backend_info(probe=probe)
    if as_json:
        print(json.dumps({"here": [asdict(finding) for finding in here]} | json.loads(info.to_json()), indent=2))
    else:
        _show(here, info, Console(highlight=False, soft_wrap=True))
    sys.exit(0 if here[0].good and (info.usable or not strict) else 1)


def what_works() -> list[Finding]:
    """Try the operators on the CPU, and look for the transformers integration and CUDA."""
    return [_cpu(), _transformers(), _cuda()]


def _cpu() -> Finding:
    """Call the operator, which builds the native kernel if need be."""
    import toptheta_npu

    ones = partial(torch.ones, dtype=torch.float32, device="cpu")
    query, cache = ones(1, 2, 1, 16), ones(1, 1, 4, 16)
    try:
        with _without_warnings():
            out = toptheta_npu.incremental_attention(query, cache, cache, ones(2))
    except TopThetaBackendError as error:
        return as_finding("CPU", None, error)
    except TopThetaError as error:  # such as a misspelt environment variable
        return Finding("CPU", None, str(error))
    except Exception as error:  # whatever is broken here is the finding
        return Finding("CPU", None, f"{type(error).__name__}: {error}", "install torch and toptheta_npu again")
    runs = what_runs(CPU_SELECTOR, probe=False)
    if not torch.allclose(out, query):
        return Finding("CPU", None, f"a wrong result ({runs.found})", "install torch and toptheta_npu again")
    why = f"; the native kernel does not run: {runs.problem}" if runs.problem else ""
    return Finding("CPU", f"{runs.found}, torch {torch.__version__}{why}", None, runs.remedy)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep out of the log what is printed here anyway."""
    logger, kept = logging.getLogger("toptheta_npu"), lambda record: record.levelno > logging.WARNING
    logger.addFilter(kept)
    try:
        yield
    finally:
        logger.removeFilter(kept)


def _transformers() -> Finding:
    major, install = _TRANSFORMERS
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return Finding("transformers", None, "not installed; needed by toptheta_npu.models and toptheta demo", install)
    if version.split(".")[0] != major:
        return Finding("transformers", version, f"made for transformers {major}", install)
    return Finding("transformers", f"{version}, for toptheta_npu.models and toptheta demo")


def _cuda() -> Finding:
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else f"; torch {torch.__version__} is built without CUDA"
        return Finding("CUDA", None, f"no device{built}")
    runs = what_cuda_runs(CUDA_SELECTOR, probe=True)
    if runs.found is None:
        return Finding("CUDA", None, runs.problem, runs.remedy)
    why = f"; the Triton kernels do not run: {runs.problem}" if runs.problem else ""
    return Finding("CUDA", f"{runs.found}, {torch.cuda.device_count()} devices{why}", None, runs.remedy)


def _show(here: list[Finding], info: BackendInfo, console: Console) -> None:
    console.print("[bold]What works here[/bold]")
    for finding in here:
        mark = "[green]yes    [/green]" if finding.good else "no     "
        text = finding.found if finding.good else finding.problem
        console.print(f"{mark} {finding.name:<13} {escape(text or '')}")
        _show_remedy(finding, console)
        if finding.name == "CPU":
            _show_details(info.cpu_findings[:-1], console)
    console.print("\n[bold]What an Ascend NPU needs[/bold]")
    for finding in info.findings:
        if finding.name == "backend" and finding.good:  # a choice, of which nothing can be found or missing
            console.print(f"chosen  backend       {finding.found}: NPU tensors run {_RUNS[info.backend]}")
            continue
        mark = "[green]found  [/green]" if finding.good else "[yellow]missing[/yellow]"
        if not finding.good and finding.found is not None:
            mark = "[yellow]unfit  [/yellow]"
        console.print(f"{mark} {finding.name:<13} {escape(finding.found or '')}".rstrip())
        if finding.problem is not None:
            console.print(f"        {escape(finding.problem)}")
        _show_remedy(finding, console)
    console.print()
    console.print(_conclusion(here, info))


def _show_details(findings: Iterable[Finding], console: Console) -> None:
    for finding in findings:
        problem = (finding.problem or "").removeprefix(f"{finding.name}: ")
        text = "; ".join(filter(None, (finding.found, problem)))
        console.print(f"        {finding.name}: {escape(text)}")


def _show_remedy(finding: Finding, console: Console) -> None:
    if finding.remedy is not None:
        console.print(f"        [bold]to do:[/bold] {escape(finding.remedy)}")


def _conclusion(here: list[Finding], info: BackendInfo) -> str:
    if not here[0].good:
        return "The operators do not run here."
    if info.usable and info.backend != "fallback":
        where = " on emulated devices" if has_emulated_devices() else ""
        return f"NPU tensors run the Ascend C kernel{where}."
    if info.backend == "npu":
        return f"NPU tensors raise an error here. {_elsewhere(here[0])}"
    return f"The backend is {info.backend!r}: NPU tensors run the PyTorch fallback on the NPU."


def _elsewhere(cpu: Finding) -> str:
    native = (cpu.found or "").startswith("native")
    return f"CPU tensors run the {'native kernel' if native else 'PyTorch fallback'}."
