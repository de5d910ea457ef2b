"""``toptheta demo``: an evaluation of the embedded model, with thresholds calibrated live and a text continued."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ..._outputs import check_output_folder, require_matplotlib
from ..._tables import counted
from ...errors import TopThetaValueError
from ...thresholds import Placement
from ..common import printing
from ..common.model import load_weights
from ..common.options import command as make_command
from ..common.progress import Bars
from .command import Prepared, header, measure, prepare
from .options import Options, completed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ...evaluation.results import Results
    from ...thresholds import ThresholdTable

RESULTS = "results.jsonl"
LENGTH, POSITIONS = 2560, 512
LIVE_K = 64
#: Of the thresholds that are calibrated live and of those that a text is continued by.
_PLACEMENT: Placement = "post_softmax"
KS = (32, 64, 128, 256, 512)
METHODS = ("dense", "tau:tau=0.0005", "top-k", "top-theta", "last-k")
_PANEL = 96


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of the command."""

    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write results and figures.")] = Path(
        "build/demo"
    )
    full: Annotated[bool, typer.Option("--full", help="Measure every method at every k. Default: k=64 alone.")] = False
    windows: Annotated[
        int, typer.Option(min=1, max=1000, metavar="INT", help="Held-out windows of 2560 tokens to score.")
    ] = 8
    calibration: Annotated[int, typer.Option(min=2, max=1000, metavar="INT", help="Sequences to calibrate on.")] = 12
    new_tokens: Annotated[
        int, typer.Option(min=1, max=POSITIONS, metavar="INT", help="Tokens to generate after the prompt.")
    ] = 48


def demo(options: DemoOptions) -> None:
    """Compare Top-θ with dense attention in a minute or two.

    It uses the embedded model, measures Top-k and last-k as well, and calibrates thresholds before your eyes.
    """
    from ...evaluation import corpus
    from ...evaluation.figures.plots import save_plots
    from ...evaluation.summary import tables_of

    require_matplotlib()  # missing, it is better missed now than after the comparison
    check_output_folder("--output", options.output, RESULTS, "tradeoff.png")
    console = printing.console()
    started = time.perf_counter()
    if note := corpus.python_note():
        console.print(note)
    prepared = preset(options)
    sequences = _sequences(prepared, options.calibration)
    network = load_weights(prepared.candidate, "float32", "cpu")
    _describe(console, network, prepared.plan.tables[_PLACEMENT])
    results, texts = _measured(console, options, prepared, network, sequences)
    for table in tables_of(results):
        printing.print_table(console, table)
    files, _ = save_plots(results.measurements, options.output)
    _show_side_by_side(console, prepared, *texts)
    if not options.full:
        console.print("Every method at every k: toptheta demo --full")
    seconds = time.perf_counter() - started
    console.print(f"{options.output / RESULTS} and {len(files)} files of figures written; {seconds:.0f} s in all.")


def preset(options: DemoOptions) -> Prepared:
    """Prepare the evaluation that the demonstration is, but for the thresholds that are calibrated live."""
    return prepare(
        completed(
            Options(
                task=["perplexity"], method=list(METHODS), k=list(KS) if options.full else [LIVE_K], length=LENGTH,
                windows=options.windows, positions=POSITIONS, output=options.output / RESULTS,
            )
        )
    )  # fmt: skip


def _sequences(prepared: Prepared, count: int) -> torch.Tensor:
    """Take windows to calibrate on, int64 [count, LENGTH]."""
    from ...evaluation import corpus

    try:
        return corpus.token_windows(prepared.candidate.tokenizer, "calibration", LENGTH, count)
    except TopThetaValueError as error:
        raise TopThetaValueError("--calibration", error.expected, error.got, "ask for fewer") from error


def _describe(console: Console, model: Any, table: ThresholdTable) -> None:
    """Say what model and thresholds are at hand."""
    config = model.config
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    console.print(
        f"Model: LLaMA, {size:.1f} M parameters, {config.num_hidden_layers} layers, {config.num_attention_heads} "
        f"query heads sharing {config.num_key_value_heads} KV heads of size {config.head_dim}, trained on the Python "
        "library.\n"
        f"Stored thresholds: k from {int(table.k[0])} to {int(table.k[-1])}, calibrated on "
        f"{table.provenance.get('sequences', '?')} sequences of modules that the comparison does not use."
    )


def _measured(
    console: Console, options: DemoOptions, prepared: Prepared, network: PreTrainedModel, sequences: torch.Tensor
) -> tuple[Results, list[Continuation]]:
    """Evaluate with the stored thresholds, calibrate others, and add those to the same results."""
    from ...evaluation.methods.kinds import parse_method
    from ...evaluation.results import ResultsFile

    def add(prepared: Prepared, before: Results | None = None) -> Results:
        with ResultsFile(options.output / RESULTS, header(prepared, network, "cpu"), restart=before is None) as results:
            measure(console, bars, prepared, network, results)
            results.sort(before.measurements if before else ())
            return results.results()

    with Bars() as bars:
        console.print(
            f"Now: {prepared.points + 1} ways to attend are compared on "
            f"{counted(options.windows, 'held-out windows')} of {LENGTH} tokens, "
            f"and Algorithm 1 calibrates on {options.calibration} sequences."
        )
        stored = add(prepared)
        texts = _continuations(network, prepared, options.new_tokens)
        live = _calibrated(console, sequences, network)
        plan = replace(prepared.plan, methods=(parse_method("top-theta"),), ks=(LIVE_K,), tables={"live": live})
        return add(replace(prepared, plan=plan), stored), texts


def _calibrated(console: Console, sequences: torch.Tensor, model: PreTrainedModel) -> ThresholdTable:
    """Calibrate thresholds by Algorithm 1 at one k, before the user's eyes."""
    from ...models import calibrate

    started = time.perf_counter()
    table = calibrate(model, sequences, k=LIVE_K, placement=_PLACEMENT, row_fraction=0.1)
    seconds = time.perf_counter() - started
    console.print(f"Live: Algorithm 1 calibrated k={LIVE_K} on {len(sequences)} sequences in {seconds:.0f} s.")
    return table


class Continuation(NamedTuple):
    """New tokens, and the V rows that a step read on average in layers from 2 on; None for dense attention."""

    tokens: list[int]
    value_rows: float | None


def _prompt(prepared: Prepared) -> torch.Tensor:
    """Take the prompt to continue, int64 [LENGTH - POSITIONS]."""
    return prepared.texts.scored[0, : LENGTH - POSITIONS]


def _continuations(model: Any, prepared: Prepared, new_tokens: int) -> list[Continuation]:
    """Write greedy continuations of one prompt, dense and by thresholds, decoded through the operator."""
    from ...evaluation.methods.method import DENSER_LAYERS
    from ...models import sparsify

    prompt, table = _prompt(prepared), prepared.plan.tables[_PLACEMENT]
    options = {
        "max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": prepared.candidate.tokenizer.pad_token_id,
    }  # fmt: skip

    def generate() -> list[int]:
        tokens = model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]), **options)[0]
        return [int(token) for token in tokens[len(prompt) :]]

    dense = generate()
    with sparsify(model, table, k=LIVE_K, statistics=True) as recording:
        sparse = generate()
    layers = recording.statistics()[DENSER_LAYERS:]
    value_rows = torch.cat([layer.value_rows.flatten() for layer in layers]).float().mean().item()
    return [Continuation(dense, None), Continuation(sparse, value_rows)]


def _show_side_by_side(console: Console, prepared: Prepared, dense: Continuation, sparse: Continuation) -> None:
    """Show both continuations, and how far they agree."""
    tokenizer, prompt = prepared.candidate.tokenizer, _prompt(prepared)
    titles = (
        f"dense: {len(prompt)} V rows and more per step",
        f"Top-θ post + VMC, k={LIVE_K}: {sparse.value_rows:.0f} V rows per step",
    )
    texts = [Text(str(tokenizer.decode(continuation.tokens))) for continuation in (dense, sparse)]
    prompt_end = Text(str(tokenizer.decode(prompt[-60:])))
    console.print(Panel(prompt_end, title="the end of a held-out prompt, to be continued", width=_PANEL))
    for text, title in zip(texts, titles, strict=True):
        console.print(Panel(text, title=title, width=_PANEL))
    pairs = zip(dense.tokens, sparse.tokens, strict=False)
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    console.print(f"The first {common} of {len(dense.tokens)} tokens agree.")


#: The command of `demo`.
command = make_command(DemoOptions, demo)
