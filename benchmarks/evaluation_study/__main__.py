"""The evaluation study on the embedded model, with the commands that a user has for theirs.

    python -m benchmarks.evaluation_study [--cut] [--stored]

It writes docs/results/evaluation and renews the tables and figures of docs/reproduction.md. About 40 minutes on two
cores; figures do not depend on what else runs there. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import shutil
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
from benchmarks.tables import renew

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproduction.md"
RESULTS = PAGE.parent / "results" / "evaluation"
#: Thresholds are made again from the same texts; results are what is committed.
TABLES = Path("build") / "evaluation_study"
FIGURES = TABLES / "figures"
#: What the page shows of them, by the folder that `draw` makes.
SHOWN = {
    "compared": ("tradeoff_perplexity", "prompts_needle_k32", "traffic_perplexity_k32"),
    "ablations": ("ablation_perplexity",),
    "popularity": (
        "popularity_perplexity_top-theta-post-vmc_k128_layer2",
        "popularity_perplexity_top-k-sdc-vmc_k128_layer2",
    ),
}


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


def keep(figures: Path, folder: Path) -> None:
    """Copies the figures that the page shows, with their data."""
    for drawn, names in SHOWN.items():
        for name in names:
            for ending in (".png", ".csv"):
                shutil.copy(figures / drawn / f"{name}{ending}", folder)


def main(
    cut: Annotated[bool, typer.Option("--cut", help="A little of everything; keeps nothing.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Measure nothing; renew the page.")] = False,
) -> None:
    """Measure, draw and renew the page."""
    console, started = Console(width=max(Console().width, 120), highlight=False), time.perf_counter()
    if cut:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            measure(CUT, folder / "tables", folder / "results", console)
            draw(folder / "results", folder / "figures")
            tables.all_tables(folder / "results")
    else:
        if not stored:
            measure(FULL, TABLES, RESULTS, console)
        draw(RESULTS, FIGURES)
        keep(FIGURES, RESULTS)
        renew(PAGE, tables.all_tables(RESULTS))
    console.print(f"{(time.perf_counter() - started) / 60:.0f} minutes.")


if __name__ == "__main__":
    typer.run(main)
