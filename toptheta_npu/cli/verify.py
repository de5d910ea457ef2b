"""``toptheta verify``: the first hour on an NPU."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .._files import check_writable, write_atomically
from ..errors import TopThetaNotImplementedError, TopThetaValueError
from .common.devices import check_device
from .common.printing import console as make_console
from .common.printing import print_table
from .common.progress import Bars

if TYPE_CHECKING:
    from ..verify.fit import Fit
    from ..verify.runner import Outcome
    from ..verify.times import Measured

_DEVICE = "npu"


def verify(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Check to run. Repeatable. Default: all.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the checks and what each confirms.")] = False,
    times: Annotated[
        bool, typer.Option("--times/--no-times", help="Also time 20 shapes and fit the time model's constants.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write outcomes, times and constants as JSON.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, metavar="FLOAT", help="Seconds after which a check counts as hanging.")
    ] = 300,
) -> None:
    """Check the kernel on an NPU, then time it.

    Each check is a small call, compared with the PyTorch fallback on the CPU. The exit status is 1 if a check fails.
    With --only, nothing is timed.
    """
    from ..verify.points import choose
    from ..verify.report import listing

    console = make_console()
    points = choose(only or [])
    if list_:
        print_table(console, listing(points))
        return
    times = times and not only
    if output is not None:
        check_writable(output, "--output")
    _require_npu()
    if times:
        from ..timing.host_model import host_model

        host_model()  # a missing emulator is better told now than in half an hour
    stored = _header()
    outcomes = _run_checks(console, points, seconds, output, stored)
    failed = [outcome.point.name for outcome in outcomes if not outcome.passed]
    console.print(f"{len(outcomes) - len(failed)} of {len(outcomes)} checks passed.")
    if failed:
        console.print(f"[red]Failed:[/red] {', '.join(failed)}. Nothing is timed before they pass.")
        raise typer.Exit(1)
    if times:
        _calibrate(console, stored, output)


def _require_npu() -> None:
    """Miss the device, or what it needs, in the words of this command."""

    try:
        check_device(_DEVICE)
    except TopThetaValueError as error:
        raise TopThetaValueError("toptheta verify", error.expected, error.got, error.remedy) from error


def _header() -> dict[str, Any]:
    from ..timing.constants import SCHEMA
    from ..timing.environment import device_name, environment

    return {"schema": SCHEMA, "device": device_name(_DEVICE), "environment": dict(environment(_DEVICE))}


def _run_checks(
    console: Console, points: Sequence[Any], seconds: float, output: Path | None, stored: dict[str, Any]
) -> list[Outcome]:
    """Run every point, and print each when it is done. The file has those that are done even if one hangs."""
    from .. import use_backend
    from ..verify.report import as_json, lines
    from ..verify.runner import run_points

    width = max(len(point.name) for point in points)
    done: list[Outcome] = []

    def show(outcome: Outcome) -> None:
        done.append(outcome)
        for line in lines(outcome, width):
            console.print(line)

    def save() -> None:
        stored["checks"] = as_json(done)
        _write(output, stored)

    with use_backend("npu", device=_DEVICE):
        outcomes = run_points(points, _DEVICE, seconds, show, gone=save)
    save()
    return outcomes


def _write(output: Path | None, stored: dict[str, Any]) -> None:
    if output is not None:
        write_atomically(output, json.dumps(stored, indent=1) + "\n")


def _calibrate(console: Console, stored: dict[str, Any], output: Path | None) -> None:
    """Time the shapes, fit the constants, print and write both, what GatherMask takes first.

    Raises:
        TopThetaNotImplementedError: the device is emulated: its times are modelled, not measured.
    """
    from ..timing.clocks import is_emulated
    from ..verify import times
    from ..verify.fit import FREE, fit
    from ..verify.gather_mask import verdict

    if is_emulated(_DEVICE):
        raise TopThetaNotImplementedError(
            "toptheta verify", "a device whose times are measured", "an emulated one, whose times are modelled",
            "the checks are done; leave the times out with --no-times, or run it on an Ascend NPU",
        )  # fmt: skip
    with Bars() as bars:
        advance = bars.add("times", len(times.SHAPES))
        measured = times.measure(times.SHAPES, _DEVICE, progress=lambda shape: advance(times.SHAPES.index(shape)))
    runs = [one.model for one in measured]
    console.print("Fitting the model's constants ...")
    fitted = fit(lambda constants: times.modelled(runs, constants), [one.microseconds for one in measured], FREE)
    said = verdict(fitted.constants["gather_mask_repeat"])
    console.print(said, markup=False)
    _show(console, measured, fitted)
    constants = {name: asdict(constant) for name, constant in fitted.constants.items()}
    found = {"gather_mask": said, "constants": constants}
    stored |= {**found, "times": times.as_json(measured, fitted.modelled), "spread": fitted.spread}
    _write(output, stored)
    if output is not None:
        use = f"toptheta benchmark --device host-model --constants {shlex.quote(str(output))}"
        console.print(f"{output} written; use it with: {use}", markup=False)


def _show(console: Console, measured: Sequence[Measured], fitted: Fit) -> None:
    from .._tables import Table

    rows = [
        (str(one.shape), one.variant, f"{one.microseconds:.1f}",
         f"{modelled:.1f}", f"{one.host * 1e6:.1f}")
        for one, modelled in zip(measured, fitted.modelled, strict=True)
    ]  # fmt: skip
    print_table(console, Table("Cold caches, µs", ("shape", "variant", "measured", "modelled", "host"), rows))
    constants = [
        (name, f"{constant.value:.4g}", f"{constant.standard_error:.2g}", constant.unit)
        for name, constant in fitted.constants.items()
    ]
    caption = f"The model misses the times by {fitted.spread:.1%} (root mean square)."
    print_table(console, Table("Fitted constants", ("constant", "value", "standard error", "unit"), constants, caption))
