"""``toptheta benchmark --device host-model``: the same shapes, modelled, with fitted constants if there are any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import track

from ..._files import write_atomically
from ..._tables import Table
from ..common.printing import print_table

if TYPE_CHECKING:
    from ...timing.constants import Constants
    from ...timing.shapes import Shape

#: Beyond so many bytes of K and V a shape that nobody asked for is left out: it would run for minutes.
_MAX_BYTES = 1 << 28
_COLUMNS = ("shape", "cache", "top-θ", "θ=-inf", "gain")
_UNCALIBRATED = "Modelled, uncalibrated: they compare kernels and are no latency of a device. Launches are included."


def read_given(file: Path | None) -> Constants | None:
    """Read the constants of a file, and check that the model has them; return None without a file."""
    from ...timing.constants import read_constants
    from ...timing.host_model import check_names, host_model

    host_model()
    if file is None:
        return None
    constants = read_constants(file)
    check_names(constants.values, "--constants")
    return constants


def run_on_model(
    console: Console,
    shapes: Sequence[Shape],
    caches: Sequence[Literal["cold", "hot"]],
    constants: Constants | None,
    json_file: Path | None,
    *,
    own: bool,
) -> None:
    """Model the shapes with k kept and with everything kept, and print microseconds.

    Args:
        own: the shapes were asked for one by one, so that large ones run too.
    """
    from ...timing.environment import core_counts
    from ...timing.report import short_name

    wanted = [shape for shape in shapes if own or shape.layer_bytes <= _MAX_BYTES]
    values = {} if constants is None else constants.values
    cores = core_counts("" if constants is None else constants.device)
    results = []
    for shape in track(wanted, "Modelling", console=console, transient=True):
        results += _times(shape, caches, values, cores)
    source = _UNCALIBRATED if constants is None else _calibrated(constants)
    rows = [
        (short_name(result["shape"]), result["cache"], *(f"{result[name]:.1f}" for name in ("kept", "dense")),
         f"{result['dense'] / result['kept']:.2f}")
        for result in results
    ]  # fmt: skip
    print_table(console, Table("Speed of a decode step on the host model, µs", _COLUMNS, rows, source, keys=2))
    for shape in shapes:
        if shape not in wanted:
            console.print(f"left out: {shape}: {shape.layer_bytes / 2**30:.1f} GiB of cache; --shape runs it")
    if json_file is not None:
        stored = [result | {"shape": asdict(result["shape"])} for result in results]
        content = {"unit": "modelled microseconds", "constants": source, "values": values, "results": stored}
        write_atomically(json_file, json.dumps(content, indent=1) + "\n")
        console.print(f"{json_file} written.")


def _times(
    shape: Shape, caches: Sequence[Literal["cold", "hot"]], values: Mapping[str, float], cores: tuple[int, int]
) -> list[dict[str, Any]]:
    from ...timing.host_model import run_on_host_model
    from ...timing.inputs import make_inputs

    inputs = make_inputs(shape, "cpu", copies=1)
    kept, dense = (run_on_host_model(inputs, dense=dense, cores=cores) for dense in (False, True))
    return [
        {"shape": shape, "cache": cache, "kept": kept.microseconds(cache, values),
         "dense": dense.microseconds(cache, values)}
        for cache in caches
    ]  # fmt: skip


def _calibrated(constants: Constants) -> str:
    names = ", ".join(constants.by_name)
    return f"Modelled, calibrated on {constants.device}: {names} were fitted there. Launches are included."
