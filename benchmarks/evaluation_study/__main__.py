"""The evaluation study on the embedded model, with the commands that a user has for theirs.

    python -m benchmarks.evaluation_study [--cut] [--stored]

It writes results to build/evaluation_study, prints the tables and draws the figures. About 40 minutes on two cores;
scores and reads do not depend on what else runs there. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.evaluation_study import tables, thresholds
from benchmarks.evaluation_study.commands import COMPARED, CUT, FULL, SHIPPED, WITH_MASS, Scale, commands

FOLDER = Path("build") / "evaluation_study"


def measure(scale: Scale, folder: Path, results: Path, console: Console) -> None:
    """Calibrates what is not calibrated yet, and runs every command."""
    for each in (folder, results):
        each.mkdir(parents=True, exist_ok=True)
    thresholds.make(folder, scale.sequences)
    for command in commands(scale):
        words = command.arguments(folder, results, scale)
        console.rule(f"{command.file}: {', '.join(command.methods)}")
        subprocess.run([sys.executable, "-m", "toptheta_npu", "evaluate", *words], check=True)


def draw(results: Path, figures: Path) -> None:
    """All figures, by the command that users have."""
    perplexity, retrieval, popularity = (
        str(results / f"{name}.jsonl") for name in ("perplexity", "retrieval", "popularity")
    )
    compared = [word for name in COMPARED for word in ("--method", name)]
    compared += [word for name in SHIPPED for word in ("--table", name)]
    for folder, words in (
        ("compared", [perplexity, retrieval, *compared, "--k", "32"]),
        ("ablations", [perplexity, "--table", WITH_MASS, "--k", "32"]),
        ("popularity", [popularity]),
    ):
        subprocess.run([sys.executable, "-m", "toptheta_npu", "plot", *words, "-o", str(figures / folder)], check=True)


def main(
    cut: Annotated[bool, typer.Option("--cut", help="A little of everything; keeps nothing.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Measure nothing; draw what was measured last.")] = False,
) -> None:
    """Measure, draw and print the tables."""
    console, started = Console(width=max(Console().width, 120), highlight=False), time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if cut else FOLDER
        results = folder / "results"
        if not stored:
            measure(CUT if cut else FULL, folder / "thresholds", results, console)
        draw(results, folder / "figures")
        for table in tables.all_tables(results).values():
            console.print(table.as_rich())
    console.print(f"{(time.perf_counter() - started) / 60:.0f} minutes.")


if __name__ == "__main__":
    typer.run(main)
