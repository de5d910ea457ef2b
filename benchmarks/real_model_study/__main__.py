"""What Top-θ does to SmolLM2-135M, measured on documents that made no thresholds.

    python -m benchmarks.real_model_study --headline | --full | --gemma | --stored

The thresholds stay in build/real_model, results and figure in docs/results/real_model, those of Gemma in
docs/results/gemma3. Killed at any time, the same command goes on. Figures do not depend on what else runs there.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.real_model_study import (
    comparisons,
    figure,
    perplexity,
    retrieval,
    tables,
    task_tables,
    texts,
    thresholds,
)
from benchmarks.real_model_study.models import GEMMA, SMOLLM2, load
from benchmarks.real_model_study.settings import HEADLINE, QUESTIONS, SCALES, TAU, Scale
from benchmarks.tables import show
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.models.hook.architecture import num_heads, num_layers
from toptheta_npu.thresholds.uniform import uniform_table

FOLDER = Path("build") / "real_model"
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "real_model"
OF_GEMMA = RESULTS.parent / "gemma3"


def measure(
    scale: Scale, model: PreTrainedModel, windows: texts.Windows, folder: Path, kept: Path, console: Console
) -> None:  # fmt: skip
    """Measure what is missing, part by part: thresholds and perplexity."""
    for part in scale.parts:
        if part.calibrated:
            table = thresholds.make(model, windows, scale, part, folder, console)
        else:  # in name alone: methods of such a part look at no table
            table = uniform_table(1e-3, num_layers(model), num_heads(model))
        perplexity.measure(part, model, windows, table, kept / f"{part.name}.jsonl", console)


def measure_retrieval(
    scale: Scale, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, root: Path, console: Console
) -> None:
    """Ask what is missing, of documents that made no thresholds."""
    windows = texts.Windows(tokenizer, root, scale)
    documents = windows.documents(HEADLINE.text, "evaluation")
    retrieval.measure(QUESTIONS, model, tokenizer, documents, RESULTS / task_tables.RETRIEVAL, console)


def measure_gemma(packages: Path | None, console: Console) -> None:
    """Measure what is missing of Gemma 3 270M."""
    model, tokenizer = load(GEMMA)
    windows = texts.Windows(tokenizer, packages or texts.fetch(FOLDER / "packages"), SCALES["gemma"])
    OF_GEMMA.mkdir(parents=True, exist_ok=True)
    measure(SCALES["gemma"], model, windows, FOLDER / "gemma3", OF_GEMMA, console)


def main(
    headline: Annotated[bool, typer.Option("--headline", help="4096 keys of prose.")] = False,
    full: Annotated[bool, typer.Option("--full", help="And all other parts, in hours.")] = False,
    of_gemma: Annotated[bool, typer.Option("--gemma", help="Gemma 3 270M.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Measure nothing; print the tables.")] = False,
    model: Annotated[Path, typer.Option(help="The folder that make real-model writes.")] = SMOLLM2,
    packages: Annotated[
        Path | None, typer.Option("--texts", help="A folder with the unpacked packages, in place of a download.")
    ] = None,
) -> None:
    """Measure what is missing, draw the figure, and print the tables."""
    console, started = Console(width=max(Console().width, 140), highlight=False), time.perf_counter()
    chosen = [name for name, wanted in (("headline", headline), ("full", full)) if wanted]
    if not chosen and not stored and not of_gemma:
        raise TopThetaValueError("options", "--headline, --full, --gemma or --stored", "none")
    if of_gemma:
        measure_gemma(packages, console)
    for name in chosen:
        scale = SCALES[name]
        loaded, tokenizer = load(model)
        root = packages or texts.fetch(FOLDER / "packages")
        measure(scale, loaded, texts.Windows(tokenizer, root, scale), FOLDER, RESULTS, console)
        if name == "full":
            measure_retrieval(scale, loaded, tokenizer, root, console)
    pair = comparisons.beside(RESULTS, HEADLINE, TAU)
    if pair is not None:
        figure.draw(HEADLINE, *pair, RESULTS / "tradeoff.png")
    show(*tables.of_smollm2(RESULTS), *tables.of_gemma(OF_GEMMA))
    console.print(f"{(time.perf_counter() - started) / 60:.0f} minutes.")


if __name__ == "__main__":
    typer.run(main)
