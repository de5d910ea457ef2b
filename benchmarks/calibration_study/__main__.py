"""What calibration decides, measured on the embedded model.

    python -m benchmarks.calibration_study [--write] [--stored]

With --write it renews the tables of docs/calibration.md and docs/results/calibration. Perplexities and counts do not
depend on what else runs on the machine.
"""

from __future__ import annotations

import json
import platform
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.calibration_study.figures import save_figures
from benchmarks.calibration_study.measure import calibrate_all, measure_all, steps
from benchmarks.calibration_study.points import Plan
from benchmarks.calibration_study.tables import tables
from benchmarks.tables import renew
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.evaluation.corpus import python_note
from toptheta_npu.evaluation.workers import ModelWorkers
from toptheta_npu.thresholds import ThresholdExtrapolationWarning

PAGE = Path(__file__).resolve().parents[2] / "docs" / "calibration.md"
RESULTS = PAGE.parent / "results" / "calibration"
ROWS = RESULTS / "study.json"


def stored_rows() -> list[dict[str, Any]]:
    """What was measured last."""
    return json.loads(ROWS.read_text())["rows"]  # type: ignore[no-any-return]


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/calibration.md and its results.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Take the figures of the last run with --write.")] = False,
) -> None:
    """Calibrate in every way, measure each on held-out text, and print the tables."""
    console = Console(width=max(Console().width, 160), highlight=False)
    started = time.perf_counter()
    rows = stored_rows() if stored else measured_rows(console, Plan())
    for table in tables(rows).values():
        console.print(table.as_rich())
    console.print(f"{(time.perf_counter() - started) / 60:.0f} minutes.")
    if write:
        if not stored:
            RESULTS.mkdir(parents=True, exist_ok=True)
            environment = {"python": platform.python_version(), "torch": torch.__version__}
            ROWS.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
        save_figures(rows, RESULTS)
        renew(PAGE, tables(rows))


def measured_rows(console: Console, plan: Plan) -> list[dict[str, Any]]:
    """Every calibration and every measurement, on all cores."""
    if note := python_note():
        console.print(note)
    # the last row lengths of a few windows may be unseen; their neighbours' thresholds are what a user would get
    warnings.simplefilter("ignore", ThresholdExtrapolationWarning)
    model, tokenizer = load_tiny_llama()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar, ModelWorkers(model) as workers:
        task = bar.add_task("calibrating and measuring", total=steps(plan))

        def step() -> None:
            workers.check()
            bar.advance(task)

        return measure_all(workers, tokenizer, calibrate_all(workers, tokenizer, plan, step), plan, step)


if __name__ == "__main__":
    typer.run(main)
