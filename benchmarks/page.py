"""Every figure that the parts of this project promise: docs/performance.md, and on the screen each with its goal.

    python -m benchmarks.page [--write]

With --write it renews the tables of docs/performance.md and docs/goals.md, and docs/results: performance.json,
calibration.json and cpu.
About ten minutes on two cores; other programs on the same cores spoil it. Nothing fails because a goal is missed. What
the Ascend C kernel promises is modelled, not measured, and comes from what `benchmarks.modelled.pages` wrote.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import chain
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
    generation_of_a_model,
    goals_page,
    gpu,
    placements,
    query_tokens,
    whole_models,
)
from benchmarks.modelled import figures as modelled
from benchmarks.tables import Goal, Table, figure_table, goal_table, renew, rounded
from toptheta_npu.timing.report import one_row_a_line

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"


def other_goals() -> list[Goal]:
    """Measure what the other parts promise, each by its own script."""
    return [
        *_named("call on a CPU", call_overhead.goals()),
        *_named("adapter", adapter_overhead.goals()),
        *_named("calibration", calibration_rows.goals()),
        *_named("generate()", generation.goals()),
    ]


def _named(part: str, goals: Iterable[Goal]) -> list[Goal]:
    return [Goal(f"{part}: {goal.name}", goal.value, goal.limit, goal.unit, goal.at_most) for goal in goals]


def tables(figures: Mapping[str, Any]) -> dict[str, Table]:
    """Make the measured tables of docs/performance.md by their places, but for those of `benchmarks.cpu_tables`."""
    return {"parts": figure_table(goals_page.of_parts(figures), title="Around the kernel")}


def stored_tables() -> dict[str, Table]:
    """Make all tables from the committed results."""
    return (
        tables(json.loads(goals_page.PARTS.read_text()))
        | cpu_tables.tables()
        | query_tokens.tables()
        | calibration_prefill.tables()
        | generation_of_a_model.tables()
        | whole_models.tables()
        | gpu.tables()
        | placements.tables()
    )


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/performance.md and its results.")] = False,
) -> None:
    """Measure everything and print one page: figure, goal, met or not."""
    console = Console(width=max(Console().width, 176))
    with tempfile.TemporaryDirectory() as unfinished:
        folder = Path(unfinished)
        cpu_tables.measure(folder)
        calibration = calibration_prefill.measure()
        environment = {"torch": torch.__version__, "machine": platform.machine()}
        figures = {"environment": environment, "goals": rounded([asdict(goal) for goal in other_goals()])}
        if write:
            cpu_tables.keep(folder)
            goals_page.PARTS.write_text(one_row_a_line(figures) + "\n")
            renew(PAGE, tables(figures))
            calibration_prefill.keep(calibration)
            whole_models.main()
            goals_page.main()
        goals = {
            "The Ascend C kernel, modelled": chain(*modelled.load().goals().values()),
            "Around the kernel": goals_page.of_parts(figures),
            "On a CPU": chain(*cpu_tables.goals(folder).values()),
            "Calibration": calibration_prefill.goals(calibration),
        }
        shown = [*cpu_tables.tables(folder).values(), calibration_prefill.as_table(calibration)]
        for table in (*shown, *(goal_table(found, title=title) for title, found in goals.items())):
            console.print(table.as_rich())


if __name__ == "__main__":
    typer.run(main)
