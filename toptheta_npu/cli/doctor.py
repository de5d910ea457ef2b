"""``toptheta doctor``: what there is to run on an NPU, what is missing, and what to type."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from toptheta_npu.npu.environment import has_emulated_devices
from toptheta_npu.npu.info import BackendInfo, backend_info


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report.")] = False,
    probe: Annotated[
        bool, typer.Option(help="Import torch_npu and ask for the devices, in a process of its own.")
    ] = True,
) -> None:
    """Tell whether the operators can run on an NPU here, and what to do if not.

    The exit status is 0 if they can, 1 if not.
    """
    info = backend_info(probe=probe)
    if as_json:
        print(info.to_json())
    else:
        _show(info, Console(highlight=False, soft_wrap=True))
    sys.exit(0 if info.usable else 1)


def _show(info: BackendInfo, console: Console) -> None:
    for finding in info.findings:
        mark = "[green]found  [/green]" if finding.good else "[red]missing[/red]"
        if not finding.good and finding.found is not None:
            mark = "[yellow]unfit  [/yellow]"
        console.print(f"{mark} {finding.name:<13} {escape(finding.found or '')}".rstrip())
        if finding.problem is not None:
            console.print(f"        {escape(finding.problem)}")
        if finding.remedy is not None:
            console.print(f"        [bold]to do:[/bold] {escape(finding.remedy)}")
    console.print()
    if info.usable and info.backend != "fallback":
        where = " on emulated devices" if has_emulated_devices() else ""
        console.print(f"NPU tensors run the Ascend C kernel{where}.")
    elif info.backend == "npu":
        console.print("NPU tensors raise an error here. CPU and CUDA tensors run the PyTorch fallback as ever.")
    else:
        console.print(f"The backend is {info.backend!r}: NPU tensors run the PyTorch fallback on the NPU.")
