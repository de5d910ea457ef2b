"""``toptheta demo``: calibrate a trained model, decode with thresholds, see what it saves."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
import typer
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..._files import write_atomically
from ..._outputs import check_output_folder
from ...errors import TopThetaValueError

if TYPE_CHECKING:
    from ...evaluation.comparison import Comparison
    from ...evaluation.tasks.perplexity import Result
    from ...evaluation.workers import ModelWorkers
    from ...thresholds import ThresholdTable

FILES = ("results.json", "tradeoff.png")
LENGTH = 2560
POSITIONS = 512
#: Seconds that a core of some 2 GHz takes, for the forecast: a calibration sequence, a window's prefix, the same
#: window under a method, and everything else.
_CALIBRATION, _PREFIX, _WINDOW, _REST = 5.5, 0.5, 1.25, 10


def demo(
    output: Annotated[Path, typer.Option(help="Folder for results.json and tradeoff.png.")] = Path("build/demo"),
    full: Annotated[bool, typer.Option("--full", help="Every method at every k, not at k=64 alone.")] = False,
    windows: Annotated[int, typer.Option(min=1, max=1000, help="Held-out windows of 2560 tokens.")] = 8,
    calibration: Annotated[int, typer.Option(min=2, max=1000, help="Sequences for the live calibration.")] = 12,
    new_tokens: Annotated[int, typer.Option(min=1, max=POSITIONS, help="Length of the two continuations.")] = 48,
) -> None:
    """Calibrate the embedded model, then compare Top-θ with dense attention, Top-k and controls."""
    import matplotlib  # noqa: F401  (missing, it is better missed now than after the comparison)
    import transformers

    from ...assets import load_tiny_llama, load_tiny_llama_thresholds
    from ...evaluation import comparison, corpus, report
    from ...evaluation.workers import ModelWorkers

    check_output_folder("--output", output, *FILES)
    # the table does not fit into less
    console = Console(width=max(Console().width, 120), highlight=False)
    started = time.perf_counter()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if note := corpus.python_note():
        console.print(note)
    model, tokenizer = load_tiny_llama()
    tables = {placement: load_tiny_llama_thresholds(placement) for placement in ("pre_softmax", "post_softmax")}
    describe(console, model, tables["post_softmax"])
    plan = comparison.FULL if full else comparison.SHORT
    workers = ModelWorkers(model)
    forecast(console, workers.count, plan.rows, windows, calibration)

    held_out = take_windows("--windows", tokenizer, "evaluation", windows)
    sequences = take_windows("--calibration", tokenizer, "calibration", calibration)
    prompt = held_out[0, : LENGTH - POSITIONS]
    with Bars(console, calibration, plan.rows * windows) as bars, workers:
        live = partial(calibrate_live, bars, workers, sequences)
        compared = comparison.Comparison(workers, plan, held_out, POSITIONS, tables, live, bars.step)
        continuations = submit_continuations(workers, prompt, tables["post_softmax"], new_tokens, tokenizer)
        show_as_they_come(bars.console, compared)
        results, texts = compared.results(), [future.result() for future in continuations]
    title = f"Perplexity (ppl) of the last {POSITIONS} of {LENGTH} tokens, {windows} held-out windows of Python source"
    console.print(report.as_table(results, title))
    settings = {"windows": windows, "length": LENGTH, "positions": POSITIONS, "live_calibration": calibration}
    write_atomically(output / "results.json", report.as_json(results, settings))
    report.save_plot(results, output / "tradeoff.png", title)
    show_side_by_side(console, tokenizer, prompt, *texts)
    if not full:
        console.print("Every method at every k: toptheta demo --full")
    elapsed = time.perf_counter() - started
    console.print(f"{output / 'results.json'} and {output / 'tradeoff.png'} written; {elapsed:.0f} s in all.")


def describe(console: Console, model: Any, table: ThresholdTable) -> None:
    """What model and thresholds are at hand."""
    config = model.config
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    console.print(
        f"Model: LLaMA, {size:.1f} M parameters, {config.num_hidden_layers} layers, {config.num_attention_heads} "
        f"query heads sharing {config.num_key_value_heads} KV heads of size {config.head_dim}, trained on the Python "
        "library.\n"
        f"Stored thresholds: k from {int(table.k[0])} to {int(table.k[-1])}, calibrated on "
        f"{table.provenance.get('sequences', '?')} sequences of modules that the comparison does not use."
    )


def forecast(console: Console, workers: int, rows: int, windows: int, calibration: int) -> None:
    """What will happen, and about how long it takes."""
    seconds = _REST + (calibration * _CALIBRATION + windows * (_PREFIX + rows * _WINDOW)) / workers
    minutes = math.ceil(seconds / 60)
    first = math.ceil((_REST / 2 + windows * (_PREFIX + _WINDOW)) / 10) * 10
    console.print(
        f"Now: {rows} ways to attend are compared on {windows} held-out windows of {LENGTH} tokens, while Algorithm 1 "
        f"calibrates on {calibration} sequences.\n"
        f"About {minutes} {'minute' if minutes == 1 else 'minutes'} on {workers} free "
        f"{'core' if workers == 1 else 'cores'}, the first figure after about {first} seconds."
    )


def take_windows(option: str, tokenizer: Any, split: Any, count: int) -> torch.Tensor:
    """Windows of the corpus; asked for too many, the error names the option."""
    from ...evaluation import corpus

    try:
        return corpus.token_windows(tokenizer, split, LENGTH, count)
    except TopThetaValueError as error:
        _, _, reason = str(error).partition("expected ")
        wanted = reason.partition(", got ")[0]
        raise TopThetaValueError(option, wanted, str(count), "ask for fewer") from error


class Bars:
    """Two progress bars that leave nothing behind; where there is no terminal, none."""

    def __init__(self, console: Console, sequences: int, steps: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self._bars = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self.console = self._bars.console
        self._calibration = self._bars.add_task("calibrating k=64 (Algorithm 1)", total=sequences)
        self._comparison = self._bars.add_task("comparing", total=steps)

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def calibrated(self, sequences: int) -> None:
        self._bars.update(self._calibration, completed=sequences)

    def step(self) -> None:
        self._bars.advance(self._comparison)


def calibrate_live(bars: Bars, workers: ModelWorkers, sequences: torch.Tensor, model: Any) -> ThresholdTable:
    """Algorithm 1 at one k, before the user's eyes."""
    from ...evaluation.comparison import LIVE_K
    from ...models import calibrate

    def progress(done: int) -> None:
        workers.check()
        bars.calibrated(done)

    started = time.perf_counter()
    table = calibrate(model, sequences, k=LIVE_K, placement="post_softmax", row_fraction=0.1, progress=progress)
    seconds = time.perf_counter() - started
    bars.console.print(f"Live: Algorithm 1 calibrated k={LIVE_K} on {len(sequences)} sequences in {seconds:.0f} s.")
    return table


def show_as_they_come(console: Console, compared: Comparison) -> None:
    """One line per method."""
    from ...evaluation.report import change

    dense: Result | None = None
    for result in compared.finished():
        if dense is None:
            dense = result
            console.print(f"{'dense':<30} ppl {result.perplexity:8.3f}")
            continue
        name = result.family if result.k is None else f"{result.family}, k={result.k}"
        rows = f"{result.reads.value_rows_mean:.0f} of {result.reads.keys_mean:.0f} V rows"
        console.print(f"{name:<30} ppl {result.perplexity:8.3f}  {change(result, dense):+9.2f} %  {rows}")


class Continuation(NamedTuple):
    """New tokens, and the V rows that a step read on average in layers from 2 on; None for dense attention."""

    tokens: list[int]
    value_rows: float | None


def submit_continuations(
    workers: ModelWorkers, prompt: torch.Tensor, table: ThresholdTable, new_tokens: int, tokenizer: Any
) -> list[Future[Continuation]]:
    """Greedy continuations of one prompt, dense and by thresholds, decoded through the operator."""
    from ...evaluation.comparison import LIVE_K
    from ...evaluation.methods.method import DENSER_LAYERS
    from ...models import sparsify

    options = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}

    def generate(model: Any) -> list[int]:
        tokens = model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]), **options)[0]
        return [int(token) for token in tokens[len(prompt) :]]

    def dense(model: Any) -> Continuation:
        return Continuation(generate(model), None)

    def sparse(model: Any) -> Continuation:
        with sparsify(model, table, k=LIVE_K, statistics=True) as recording:
            tokens = generate(model)
        layers = recording.statistics()[DENSER_LAYERS:]
        return Continuation(tokens, torch.cat([layer.value_rows.flatten() for layer in layers]).float().mean().item())

    work: tuple[Callable[[Any], Continuation], ...] = (dense, sparse)
    return [workers.submit(each) for each in work]


def show_side_by_side(
    console: Console, tokenizer: Any, prompt: torch.Tensor, dense: Continuation, sparse: Continuation
) -> None:
    """Both continuations, and how far they agree."""
    from ...evaluation.comparison import LIVE_K

    titles = (
        f"dense: {len(prompt)} V rows and more per step",
        f"Top-θ post + VMC, k={LIVE_K}: {sparse.value_rows:.0f} V rows per step",
    )
    texts = [tokenizer.decode(continuation.tokens) for continuation in (dense, sparse)]
    panels = [Panel(Text(text), title=title, width=58) for text, title in zip(texts, titles, strict=True)]
    context = Text(tokenizer.decode(prompt[-60:]))
    console.print(Panel(context, title="the end of a held-out prompt, to be continued", width=118))
    console.print(Columns(panels))
    pairs = zip(dense.tokens, sparse.tokens, strict=False)
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    console.print(f"The first {common} of {len(dense.tokens)} tokens agree.")
