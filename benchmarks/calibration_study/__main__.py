"""What calibration decides, measured on the embedded model.

    python -m benchmarks.calibration_study [--part NAME] [--stored]

It writes docs/results/calibration and renews the tables and figures of docs/calibration.md. About 25 minutes on two
cores; perplexities and counts do not depend on what else runs there.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.calibration_study import selectors
from benchmarks.calibration_study.figures import save_figures
from benchmarks.calibration_study.measure import calibrate_all, measure_all, steps
from benchmarks.calibration_study.points import Extent
from benchmarks.calibration_study.tables import tables
from benchmarks.tables import renew
from toptheta_npu._checks import check_choice
from toptheta_npu._tables import Table
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.evaluation.corpus import python_note
from toptheta_npu.evaluation.workers import ModelWorkers
from toptheta_npu.thresholds import ThresholdExtrapolationWarning
from toptheta_npu.timing.report import one_row_a_line

PAGE = Path(__file__).resolve().parents[2] / "docs" / "calibration.md"
RESULTS = PAGE.parent / "results" / "calibration"
#: What is measured, by the names of the files in `RESULTS`.
PARTS: Mapping[str, Callable[[Console, tuple[Path, ...]], dict[str, Any]]] = {
    "thresholds": lambda console, prose: measured_thresholds(console, Extent(prose_files=prose)),
    "selectors": lambda console, _: selectors.measure(console),
}


def stored(part: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Read the results of a part that were written last."""
    return json.loads((folder / f"{part}.json").read_text())["results"]  # type: ignore[no-any-return]


def tables_of(part: str, folder: Path = RESULTS) -> dict[str, Table]:
    """Make the tables of a part from what was written last, by the names of their places in the page."""
    results = stored(part, folder)
    if part == "thresholds":
        return tables(results)
    return {"study selectors": selectors.as_table(results)}


def all_tables() -> dict[str, Table]:
    """Make every table of the page."""
    return {name: table for part in PARTS for name, table in tables_of(part).items()}


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PARTS)}, and no other.")] = None,
    stored_only: Annotated[bool, typer.Option("--stored", help="Measure nothing; renew the page.")] = False,
    prose: Annotated[
        list[Path] | None, typer.Option(help="Text files in place of the prose of the running Python; writes nothing.")
    ] = None,
) -> None:
    """Measure, write docs/results/calibration, and renew the tables and figures of docs/calibration.md."""
    console = Console(width=max(Console().width, 160), highlight=False)
    started = time.perf_counter()
    chosen = () if stored_only else tuple(part or PARTS)
    for name in chosen:
        check_choice("--part", name, tuple(PARTS))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if prose else RESULTS
        folder.mkdir(parents=True, exist_ok=True)
        for name in chosen:
            environment = {"python": platform.python_version(), "torch": torch.__version__}
            figures = {"environment": environment, **PARTS[name](console, tuple(prose or ()))}
            (folder / f"{name}.json").write_text(one_row_a_line(figures) + "\n")
        for name in chosen or PARTS:
            for table in tables_of(name, folder).values():
                console.print(table.as_rich())
    if not prose:
        save_figures(stored("thresholds"), RESULTS)
        renew(PAGE, all_tables())
    console.print(f"{(time.perf_counter() - started) / 60:.0f} minutes.")


def measured_thresholds(console: Console, extent: Extent) -> dict[str, Any]:
    """Run every calibration and every measurement of its thresholds, on all cores."""
    if note := python_note():
        console.print(note)
    # the last row lengths of a few windows may be unseen; their neighbours' thresholds are what a user would get
    warnings.simplefilter("ignore", ThresholdExtrapolationWarning)
    model, tokenizer = load_tiny_llama()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar, ModelWorkers(model) as workers:
        task = bar.add_task("calibrating and measuring", total=steps(extent))

        def step() -> None:
            workers.check()
            bar.advance(task)

        tables_of_all = calibrate_all(workers, tokenizer, extent, step)
        results = measure_all(workers, tokenizer, tables_of_all, extent, step)
    return {"settings": asdict(extent), "results": results}


if __name__ == "__main__":
    typer.run(main)
