"""Every figure that the parts of this project promise, with its goal: one page.

    python -m benchmarks.page [--write]

With --write it renews the tables of docs/performance.md and docs/results/performance.json. About ten minutes on two
cores; other programs on the same cores spoil it. Nothing fails because a goal is missed.
"""

from __future__ import annotations

import json
import platform
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
    generation,
)
from benchmarks.modelled import decode, kernel_page, kernel_tables
from benchmarks.tables import Goal, Table, goal_table, renew
from toptheta_npu.benchmark import report, shapes
from toptheta_npu.benchmark.environment import environment
from toptheta_npu.benchmark.measure import ShapeResult, compare

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
RESULTS = PAGE.parent / "results"
COMPARISON = RESULTS / "comparison_cpu.json"
FIGURES = RESULTS / "performance.json"
ROUNDS = 15


def comparison_goals(results: Iterable[ShapeResult]) -> list[Goal]:
    """The decode step in pure PyTorch, cold, against the best SDPA."""
    figures = []
    for result in results:
        goal, gain = report.goal_of(result.shape), result.gain("sparse", "cold")
        if goal is not None and gain is not None:
            name = f"PyTorch decode step against the best SDPA, cold: {report.short_name(result.shape)}"
            figures.append(Goal(name, gain, goal, at_most=False))
    return figures


def other_goals() -> list[Goal]:
    """What the other parts promise, each measured by its own script."""
    return [
        *_named("call on a CPU", call_overhead.goals()),
        *_named("adapter", adapter_overhead.goals()),
        *_named("calibration", [*calibration_rows.goals(), *calibration_prefill.goals()]),
        *_named("generate()", generation.goals()),
    ]


def _named(part: str, goals: Iterable[Goal]) -> list[Goal]:
    return [Goal(f"{part}: {goal.name}", goal.value, goal.limit, goal.unit, goal.at_most) for goal in goals]


def model_goals() -> list[Goal]:
    """The Ascend C kernel on the host model."""
    results, _ = kernel_page.collect()
    return _named("kernel, modelled", kernel_tables.goals(results))


def tables(goals: Iterable[Goal], comparison: str, model: Iterable[Mapping[str, Any]]) -> dict[str, Table]:
    """The tables of docs/performance.md by the names of their places there, from what the files of results hold."""
    return {
        "goals": goal_table(goals),
        "comparison": report.summary(report.from_json(comparison), "cpu"),
        "model": model_table(model),
    }


def model_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The modelled kernel on the shapes of ``python -m benchmarks.modelled``."""
    return Table("The kernel on the host model", (*decode.SHAPE_COLUMNS, *decode.COLUMNS), [
        [*decode.shape_cells(shapes.Shape(**row["shape"])), *decode.cells(row)] for row in rows
    ])  # fmt: skip


def stored_tables() -> dict[str, Table]:
    """The tables from the committed results."""
    figures = json.loads(FIGURES.read_text())
    return tables([Goal(**goal) for goal in figures["goals"]], COMPARISON.read_text(), figures["model"])


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/performance.md and its results.")] = False,
) -> None:
    """Measure everything and print one page: figure, goal, met or not."""
    console = Console(width=max(Console().width, 176))
    with torch.no_grad():
        compared = compare(shapes.CPU_SHAPES, "cpu", rounds=ROUNDS)
    comparison = report.as_json(compared, environment("cpu"), {"rounds": ROUNDS}, "cpu")
    modelled_rows, left_out = decode.run(shapes.SHAPES, console)
    goals = [*comparison_goals(compared), *model_goals(), *other_goals()]
    figures = {
        "environment": {"torch": torch.__version__, "machine": platform.machine()},
        "goals": [asdict(goal) for goal in goals],
        "model": decode.as_json(modelled_rows),
        "model_left_out": [str(shape) for shape, _ in left_out],
    }
    figures = kernel_page.rounded(figures)
    if write:
        COMPARISON.write_text(comparison + "\n")
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
        renew(PAGE, stored_tables())
    for table in tables(goals, comparison, figures["model"]).values():
        console.print(table.as_rich())


if __name__ == "__main__":
    typer.run(main)
