"""The decode step on this CPU: what docs/performance.md shows of it.

    python -m benchmarks.cpu_tables [--part NAME] [--folder FOLDER]

About six minutes on two cores, and 12 GiB of memory; other programs on the same cores spoil it. Each part is a command
in a process of its own, since PyTorch decides once per process which pages it asks for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import decode_step_1b
from benchmarks.tables import Table, show
from toptheta_npu.timing import report
from toptheta_npu.timing.measure import ShapeResult

_ROOT = Path(__file__).resolve().parents[1]
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


def measure(folder: Path, parts: Iterable[str] = PARTS) -> None:
    """Run some parts; each writes one file into ``folder``."""
    for name in parts:
        arguments, settings = PARTS[name]
        command = [sys.executable, "-m", *arguments, "--json", str(folder / f"{name}.json")]
        subprocess.run(command, check=True, cwd=_ROOT, env=os.environ | settings, stdout=subprocess.DEVNULL)


def results(folder: Path, name: str) -> list[ShapeResult]:
    """Read the comparison of one part."""
    return report.from_json((folder / f"{name}.json").read_text())


def stored(folder: Path, name: str) -> dict[str, Any]:
    """Read what one part wrote."""
    return json.loads((folder / f"{name}.json").read_text())  # type: ignore[no-any-return]


def tables(folder: Path) -> Iterator[Table]:
    """Make the tables of docs/performance.md from the files of ``folder``, in its order."""
    found = [name for name in PARTS if (folder / f"{name}.json").exists()]
    yield machine_table(folder, found)
    for name in found:
        if name in _COMPARED:
            yield _COMPARED[name](results(folder, name))
        else:
            figures = stored(folder, name)
            yield decode_step_1b.bytes_table(figures)
            yield decode_step_1b.as_table(figures)


def int8_table(compared: Sequence[ShapeResult]) -> Table:
    """Tabulate Top-θ over int8 caches."""
    table = report.int8_summary(compared)
    assert table is not None
    return table


def machine_table(folder: Path, parts: Iterable[str]) -> Table:
    """Tabulate what each part was measured on."""
    names = {
        "name": "CPU", "threads": "threads", "operators": "operators", "cache_bytes": "last-level cache",
        "torch": "torch",
    }  # fmt: skip
    rows = []
    for part in parts:
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


#: Makes the table of a part that compares forms.
_COMPARED: Mapping[str, Callable[[Sequence[ShapeResult]], Table]] = {
    "small_pages": lambda compared: report.summary(compared, "cpu"),
    "huge_pages": lambda compared: report.summary(compared, "cpu"),
    "densities": density_table,
    "int8": int8_table,
}


def main(
    part: Annotated[
        list[str] | None, typer.Option(help=f"Measure this one alone: {', '.join(PARTS)}.  [default: all]")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Keep all figures here, as JSON.")] = None,
) -> None:
    """Measure the decode step on this CPU and print the tables."""
    if unknown := set(part or []) - set(PARTS):
        raise typer.BadParameter(f"expected one of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as unfinished:
        where = (folder or Path(unfinished)).resolve()
        where.mkdir(parents=True, exist_ok=True)
        measure(where, part or PARTS)
        show(*tables(where))


if __name__ == "__main__":
    typer.run(main)
