"""The decode step on this CPU: what docs/performance.md shows of it.

    python -m benchmarks.cpu_tables [--write] [--part NAME]

With --write it renews docs/results/cpu and the tables of docs/performance.md. About six minutes on two cores, and 8 GiB
of memory; other programs on the same cores spoil it. Each part is a command in a process of its own, since PyTorch
decides once per process which pages it asks for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import decode_step_1b
from benchmarks.tables import Goal, Table, renew
from toptheta_npu.timing import report
from toptheta_npu.timing.contenders import Role
from toptheta_npu.timing.measure import ShapeResult
from toptheta_npu.timing.shapes import Shape

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
RESULTS = PAGE.parent / "results" / "cpu"
MIN_OVER_DENSE = 0.95
#: By heads, n and dtype: top-θ over θ = -inf and over the best dense form, shares of the stream's rate at both.
GOALS: Mapping[tuple[str, int, str], tuple[float | None, ...]] = {
    ("48/48", 2048, "float32"): (1.75, 1.5, 0.9, 0.85),
    ("48/48", 2048, "bfloat16"): (1.65, 1.5, 0.9, 0.85),
    ("48/48", 2048, "float16"): (1.65, 1.5, 0.9, 0.85),
    **{("32/8", 8192, dtype): (1.6, 1.4, 0.8, 0.75) for dtype in ("float32", "bfloat16", "float16")},
    ("32/8", 2048, "bfloat16"): (None, None, None, 0.65),
}
_GOALS_OF = ("over θ=-inf", "over any dense form", "share of the stream's rate at θ=-inf", "share of it with top-θ")
#: By heads: int8 top-θ over θ = -inf in the dtype of the query, and over θ = -inf in int8.
INT8_GOALS: Mapping[str, tuple[float, float]] = {"48/48": (2.8, 1.6), "32/8": (2.2, 1.3)}
_ROUNDS = 31
_COMPARISON = ("toptheta_npu", "benchmark", "--device", "cpu", "--rounds", str(_ROUNDS))
_INT8_SHAPES = tuple(
    f"{shape},dtype=bfloat16,cache=int8"
    for shape in ("heads=48,n=2048,k=128", "heads=32/8,n=8192,k=128", "heads=32/8,n=32768,k=128,batch=4,head_dim=64")
)
_STEP = ("benchmarks.decode_step_1b",)
_SMALL, _HUGE = ({"THP_MEM_ALLOC_ENABLE": value} for value in "01")
#: By the names of their files: a module with its arguments, and what is set around it.
PARTS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "small_pages": (_COMPARISON, _SMALL),
    "huge_pages": (_COMPARISON, _HUGE),
    "densities": ((*_COMPARISON, "--sweep", "densities", "--cache", "cold"), _SMALL),
    "int8": (
        (*_COMPARISON, *(word for shape in _INT8_SHAPES for word in ("--shape", shape)), "--cache", "cold"),
        _SMALL,
    ),
    "decode_step_small_pages": (_STEP, _SMALL),
    "decode_step_huge_pages": (_STEP, _HUGE),
}
STEPS = ("decode_step_small_pages", "decode_step_huge_pages")


def measure(folder: Path, parts: Iterable[str] = PARTS) -> None:
    """Run some parts; each writes one file into ``folder``."""
    for name in parts:
        arguments, settings = PARTS[name]
        command = [sys.executable, "-m", *arguments, "--json", str(folder / f"{name}.json")]
        subprocess.run(command, check=True, cwd=PAGE.parents[1], env=os.environ | settings, stdout=subprocess.DEVNULL)


def results(folder: Path, name: str) -> list[ShapeResult]:
    """Read the comparison of one part."""
    return report.from_json((folder / f"{name}.json").read_text())


def stored(folder: Path, name: str) -> dict[str, Any]:
    """Read what one part wrote."""
    return json.loads((folder / f"{name}.json").read_text())  # type: ignore[no-any-return]


def goals(folder: Path = RESULTS) -> dict[str, list[Goal]]:
    """List what the native kernel (cold) and a whole step promise, from the files of ``folder``.

    The keys are the sections of docs/performance.md that show the figures, as a link names them.
    """
    worst = min(result.gain("sparse", "cold", "own dense") or 0.0 for result in results(folder, "densities"))
    least = Goal("native top-θ over native at θ=-inf, the least of all k", worst, MIN_OVER_DENSE, at_most=False)
    return {
        "on-a-cpu": list(_shape_goals(results(folder, "small_pages"))),
        "int8-caches": list(_int8_goals(results(folder, "int8"))),
        "the-gain-by-k": [least],
        "a-model": decode_step_1b.goals(stored(folder, STEPS[0])),
    }


def tables(folder: Path = RESULTS) -> dict[str, Table]:
    """Make the tables of docs/performance.md from the files of ``folder``, by the names of their places there."""
    return {
        "cpu machine": machine_table(folder),
        **{f"cpu {name}": report.summary(results(folder, name), "cpu") for name in ("small_pages", "huge_pages")},
        "cpu int8": int8_table(results(folder, "int8")),
        "cpu densities": density_table(results(folder, "densities")),
        **{f"cpu {name}": decode_step_1b.as_table(stored(folder, name)) for name in STEPS},
        "cpu bytes": decode_step_1b.bytes_table(stored(folder, STEPS[0])),
    }


def int8_table(compared: Sequence[ShapeResult]) -> Table:
    """Tabulate Top-θ over int8 caches."""
    table = report.int8_summary(compared)
    assert table is not None
    return table


def _shape_goals(compared: Sequence[ShapeResult]) -> Iterator[Goal]:
    for result in compared:
        limits = GOALS.get((result.shape.heads, result.shape.n, result.shape.dtype))
        if limits is not None and _has_goals(result.shape):
            for name, figure, limit in zip(_GOALS_OF, _figures(result), limits, strict=True):
                if figure is not None and limit is not None:
                    yield Goal(f"{report.short_name(result.shape)}: {name}", figure, limit, at_most=False)


def _int8_goals(compared: Sequence[ShapeResult]) -> Iterator[Goal]:
    roles: Mapping[str, Role] = {"θ=-inf": "own dense", "θ=-inf in int8": "own dense int8"}
    for result in compared:
        for (name, role), limit in zip(roles.items(), INT8_GOALS[result.shape.heads], strict=True):
            figure = result.gain("sparse int8", "cold", role)
            if figure is not None:
                yield Goal(f"{report.short_name(result.shape)}: over {name}", figure, limit, at_most=False)


def _has_goals(shape: Shape) -> bool:
    return shape.batch == 1 and shape.k == 128 and not shape.block_size and shape.head_dim == 128


def _figures(result: ShapeResult) -> list[float | None]:
    """Compute the gains of native top-θ, and the shares of the rate of the stream."""
    rates = [result.roofline_share(result.fastest("cold", role), "cold") for role in ("own dense", "sparse")]
    return [result.gain("sparse", "cold", "own dense"), result.gain("sparse", "cold"), *rates]


def machine_table(folder: Path) -> Table:
    """Tabulate what each part was measured on."""
    names = {
        "name": "CPU", "threads": "threads", "operators": "operators", "cache_bytes": "last-level cache",
        "torch": "torch",
    }  # fmt: skip
    rows = []
    for part in PARTS:
        figures = stored(folder, part)
        environment: Mapping[str, Any] = figures["environment"]
        pages = " or ".join(sorted({str(result["pages"]) for result in figures.get("results", [figures])}))
        cells = {name: str(environment[name]) for name in names}
        cells["cache_bytes"] = f"{environment['cache_bytes'] >> 20} MiB"
        rows.append([part.replace("_", " "), *cells.values(), pages])
    return Table("The machine", ("table", *names.values(), "caches in"), rows)


def density_table(compared: Sequence[ShapeResult]) -> Table:
    """Tabulate the gain over θ = -inf against k, one line per kind of shape."""
    lines: dict[tuple[str, int, str], list[ShapeResult]] = {}
    for result in compared:
        lines.setdefault((result.shape.heads, result.shape.n, result.shape.dtype), []).append(result)
    ks = sorted({result.shape.k for result in compared})
    rows = []
    for (heads, n, dtype), members in lines.items():
        cells = {member.shape.k: _gain_and_bound(member) for member in members}
        rows.append([f"{heads} n={n} {dtype}", *(cells.get(k, "") for k in ks)])
    return Table("Native top-θ over native at θ=-inf, cold (bound)", ("", *(f"k={k}" for k in ks)), rows)


def _gain_and_bound(result: ShapeResult) -> str:
    gain = result.gain("sparse", "cold", "own dense")
    return "" if gain is None or result.traffic is None else f"{gain:.2f} ({result.traffic.bound:.2f})"


def keep(folder: Path) -> None:
    """Copy the files of ``folder`` to the documentation, and renew its tables."""
    shutil.copytree(folder, RESULTS, dirs_exist_ok=True)
    renew(PAGE, tables(RESULTS))


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/performance.md and docs/results/cpu.")] = False,
    part: Annotated[
        list[str] | None, typer.Option(help=f"Measure this one alone: {', '.join(PARTS)}.  [default: all]")
    ] = None,
) -> None:
    """Measure the decode step on this CPU and print the tables; what is not measured is taken from docs/results/cpu."""
    if unknown := set(part or []) - set(PARTS):
        raise typer.BadParameter(f"expected one of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    console = Console(width=max(Console().width, 176))
    with tempfile.TemporaryDirectory() as unfinished:
        folder = Path(unfinished)
        if part:
            shutil.copytree(RESULTS, folder, dirs_exist_ok=True)
        measure(folder, part or PARTS)
        if write:
            keep(folder)
        for table in tables(folder).values():
            console.print(table.as_rich())


if __name__ == "__main__":
    typer.run(main)
