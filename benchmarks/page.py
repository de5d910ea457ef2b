"""Every figure that the parts of this project promise, with its goal: one page.

    python -m benchmarks.page [--write] [--only-model]

With --write it renews the tables of docs/performance.md, and docs/results: performance.json, calibration.json and cpu.
About ten minutes on two cores; other programs on the same cores spoil it. Nothing fails because a goal is missed.
With --only-model it renews the modelled figures alone; their goals come from what kernel_page wrote.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks import (
    adapter_overhead,
    calibration_prefill,
    calibration_rows,
    call_overhead,
    cpu_tables,
    generation,
)
from benchmarks.modelled import decode, kernel_page, kernel_tables
from benchmarks.tables import Goal, Table, goal_table, renew
from toptheta_npu.benchmark import shapes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
RESULTS = PAGE.parent / "results"
FIGURES = RESULTS / "performance.json"
_MODELLED = "kernel, modelled"


def other_goals() -> list[Goal]:
    """What the other parts promise, each measured by its own script."""
    return [
        *_named("call on a CPU", call_overhead.goals()),
        *_named("adapter", adapter_overhead.goals()),
        *_named("calibration", calibration_rows.goals()),
        *_named("generate()", generation.goals()),
    ]


def _named(part: str, goals: Iterable[Goal]) -> list[Goal]:
    return [Goal(f"{part}: {goal.name}", goal.value, goal.limit, goal.unit, goal.at_most) for goal in goals]


def model_goals(results: Mapping[str, Any]) -> list[Goal]:
    """The Ascend C kernel on the host model, from the results of `kernel_page`."""
    return _named(_MODELLED, kernel_tables.goals(results))


def tables(figures: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of docs/performance.md by the names of their places, but for those of `benchmarks.cpu_tables`."""
    goals = [Goal(**goal) for goal in figures["goals"]]
    return {"goals": goal_table(goals), "model": model_table(figures["model"])}


def model_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The modelled kernel on the shapes of ``python -m benchmarks.modelled``."""
    return Table("The kernel on the host model", (*decode.SHAPE_COLUMNS, *decode.COLUMNS), [
        [*decode.shape_cells(shapes.Shape(**row["shape"])), *decode.cells(row)] for row in rows
    ])  # fmt: skip


def stored_tables() -> dict[str, Table]:
    """All tables from the committed results."""
    return tables(json.loads(FIGURES.read_text())) | cpu_tables.tables() | calibration_prefill.tables()


def with_model(figures: Mapping[str, Any], results: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """The figures with those of the modelled kernel, in place of what they hold of it."""
    rows, left_out = decode.run(shapes.SHAPES, console)
    goals = kernel_page.rounded([asdict(goal) for goal in model_goals(results)])
    others = [goal for goal in figures["goals"] if not goal["name"].startswith(_MODELLED)]
    modelled = {"model": decode.as_json(rows), "model_left_out": [str(shape) for shape, _ in left_out]}
    return {**figures, "goals": [*goals, *others], **kernel_page.rounded(modelled)}


def _keep(figures: Mapping[str, Any]) -> None:
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    renew(PAGE, tables(figures))


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/performance.md and its results.")] = False,
    only_model: Annotated[
        bool, typer.Option("--only-model", help="Model the Ascend C kernel anew; all else stays as it was measured.")
    ] = False,
) -> None:
    """Measure everything and print one page: figure, goal, met or not."""
    console = Console(width=max(Console().width, 176))
    if only_model:
        results = json.loads(kernel_page.RESULTS.read_text())
        figures = with_model(json.loads(FIGURES.read_text()), results, console)
        if write:
            _keep(figures)
        for table in tables(figures).values():
            console.print(table.as_rich())
        return
    with tempfile.TemporaryDirectory() as unfinished:
        folder = Path(unfinished)
        cpu_tables.measure(folder)
        calibration = calibration_prefill.measure()
        goals = kernel_page.rounded([asdict(goal) for goal in other_goals()])
        environment = {"torch": torch.__version__, "machine": platform.machine()}
        figures = with_model({"environment": environment, "goals": goals}, kernel_page.collect()[0], console)
        if write:
            cpu_tables.keep(folder)
            _keep(figures)
            calibration_prefill.keep(calibration)
        for table in (tables(figures) | cpu_tables.tables(folder)).values():
            console.print(table.as_rich())
        console.print(calibration_prefill.as_table(calibration).as_rich())


if __name__ == "__main__":
    typer.run(main)
