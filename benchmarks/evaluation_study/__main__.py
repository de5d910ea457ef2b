"""The evaluation study on the embedded model, with the commands that a user has for theirs.

    python -m benchmarks.evaluation_study [--cut | --stored]

It measures in build/evaluation_study, keeps results and figures in docs/results/evaluation, and renews the tables of
docs/reproduction.md. Scores and reads do not depend on what else runs there. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.evaluation_study import masses, popularity, tables, thresholds
from benchmarks.evaluation_study.commands import COMPARED, CUT, FULL, SHIPPED, WITH_MASS, Scale, commands
from benchmarks.tables import renew
from toptheta_npu._tables import Table
from toptheta_npu.cli.evaluate.command import evaluate

FOLDER = Path("build") / "evaluation_study"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproduction.md"
RESULTS = PAGE.parent / "results" / "evaluation"
#: The file of the heads that want each V row among the results.
POPULARITY = "popularity.json"
#: The figures that the page shows, by the folder that they are drawn into.
SHOWN: Mapping[str, tuple[str, ...]] = {
    "compared": ("tradeoff_perplexity", "prompts_needle_k32", "traffic_perplexity_k32"),
    "ablations": ("ablation_perplexity",),
    "popularity": tuple(
        f"popularity_perplexity_{method}_k128_layer2" for method in ("top-theta-post-vmc", "top-k-sdc-vmc")
    ),
}


def measure(scale: Scale, folder: Path, results: Path, console: Console) -> None:
    """Calibrate what is not calibrated yet, and run every command."""
    for each in (folder, results):
        each.mkdir(parents=True, exist_ok=True)
    thresholds.make(folder, scale.sequences)
    for command in commands(scale):
        console.rule(f"{command.file}: {', '.join(command.methods)}")
        evaluate(command.options(folder, results, scale))
    masses.measure(results / tables.MASSES, scale.ks[0], min(2, scale.windows), scale.positions)
    popularity.measure(results / POPULARITY)


def draw(results: Path, figures: Path) -> None:
    """Draw all figures; those of the results by the command that users have."""
    perplexity, retrieval = (str(results / f"{name}.jsonl") for name in ("perplexity", "retrieval"))
    compared = [word for name in COMPARED for word in ("--method", name)]
    compared += [word for name in SHIPPED for word in ("--table", name)]
    for folder, words in (
        ("compared", [perplexity, retrieval, *compared, "--k", "32"]),
        ("ablations", [perplexity, "--table", WITH_MASS, "--k", "32"]),
    ):
        subprocess.run([sys.executable, "-m", "toptheta_npu", "plot", *words, "-o", str(figures / folder)], check=True)
    popularity.draw(results / POPULARITY, figures / "popularity")


def keep(results: Path, figures: Path, found: Mapping[str, Table]) -> None:
    """Copy results and the figures that are shown to where the page has them, and renew its tables."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    shown = [figures / folder / f"{name}.png" for folder, names in SHOWN.items() for name in names]
    for file in (*sorted(results.glob("*.json*")), *shown):
        if file.parent != RESULTS:
            shutil.copyfile(file, RESULTS / file.name)
    renew(PAGE, found)


def main(
    cut: Annotated[bool, typer.Option("--cut", help="A little of everything; keeps nothing.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Measure nothing; renew the page.")] = False,
) -> None:
    """Measure, draw, print the tables, and renew docs/reproduction.md."""
    console, started = Console(width=max(Console().width, 120), highlight=False), time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if cut else FOLDER
        results = RESULTS if stored else folder / "results"
        if not stored:
            measure(CUT if cut else FULL, folder / "thresholds", results, console)
        draw(results, folder / "figures")
        found = tables.all_tables(results)
        if not cut:
            keep(results, folder / "figures", found)
        for table in found.values():
            console.print(table.as_rich())
    console.print(f"{(time.perf_counter() - started) / 60:.0f} minutes.")


if __name__ == "__main__":
    typer.run(main)
