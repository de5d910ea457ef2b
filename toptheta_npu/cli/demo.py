"""``toptheta demo``: calibrate a trained model, decode with thresholds, see what it saves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from toptheta_npu._outputs import check_output_folder, write_output

if TYPE_CHECKING:
    from toptheta_npu.evaluation.methods import Method
    from toptheta_npu.evaluation.perplexity import PerplexityTask, Result
    from toptheta_npu.thresholds import ThresholdTable

FILES = ("results.json", "tradeoff.png")
LENGTH = 2560
POSITIONS = 512
KS = (32, 64, 128, 256, 512)
RANDOM_KS = (32, 64, 128)  # more random keys make no difference
LIVE_K = 64


def demo(
    output: Annotated[Path, typer.Option(help="Folder for results.json and tradeoff.png.")] = Path("build/demo"),
    windows: Annotated[int, typer.Option(min=1, help="Held-out windows of 2560 tokens.")] = 8,
    calibration: Annotated[int, typer.Option(min=2, help="Sequences for the live calibration.")] = 12,
    new_tokens: Annotated[int, typer.Option(min=1, help="Length of the two continuations.")] = 48,
) -> None:
    """Calibrate the embedded model, then compare Top-θ with dense attention, Top-k and controls."""
    import matplotlib  # noqa: F401  (missing, it is better missed now than after the comparison)
    import transformers

    from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
    from toptheta_npu.evaluation import corpus, report
    from toptheta_npu.evaluation.perplexity import PerplexityTask

    check_output_folder("--output", output, *FILES)
    # the table does not fit into less
    console = Console(width=max(Console().width, 120))
    started = time.perf_counter()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if note := corpus.python_note():
        console.print(note)
    model, tokenizer = load_tiny_llama()
    tables = {placement: load_tiny_llama_thresholds(placement) for placement in ("pre_softmax", "post_softmax")}
    describe(console, model, tables["post_softmax"])

    live = calibrate_live(console, model, corpus.token_windows(tokenizer, "calibration", LENGTH, calibration))
    held_out = corpus.token_windows(tokenizer, "evaluation", LENGTH, windows)
    with progress(console) as bar:
        task = bar.add_task("dense prefixes", total=None)
        evaluation = PerplexityTask(model, held_out, POSITIONS)
        bar.remove_task(task)
        results = compare(bar, evaluation, tables, live)
    title = f"Perplexity (ppl) of the last {POSITIONS} of {LENGTH} tokens, {windows} held-out windows of Python source"
    console.print(report.as_table(results, title))
    settings = {"windows": windows, "length": LENGTH, "positions": POSITIONS, "live_calibration": calibration}
    write_output("--output", output / "results.json", report.as_json(results, settings))
    report.save_plot(results, output / "tradeoff.png", title)
    prompt = held_out[0, : LENGTH - POSITIONS]
    continue_side_by_side(console, model, tokenizer, prompt, tables["post_softmax"], new_tokens)
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


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """A progress bar that leaves nothing behind."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield bar


def calibrate_live(console: Console, model: Any, sequences: torch.Tensor) -> ThresholdTable:
    """Algorithm 1 at one k, before the user's eyes."""
    from toptheta_npu.models import calibrate

    started = time.perf_counter()
    with progress(console) as bar:
        task = bar.add_task(f"calibrating k={LIVE_K} (Algorithm 1)", total=len(sequences))
        table = calibrate(
            model, sequences, k=LIVE_K, placement="post_softmax", row_fraction=0.1,
            progress=lambda done: bar.update(task, completed=done),
        )  # fmt: skip
    seconds = time.perf_counter() - started
    console.print(f"Live: Algorithm 1 calibrated k={LIVE_K} on {len(sequences)} sequences in {seconds:.0f} s.")
    return table


def list_methods(tables: dict[str, ThresholdTable], live: ThresholdTable) -> Iterator[list[Method]]:
    """Methods in the order of the table; the controls are added by `compare`, which knows the V rows."""
    from toptheta_npu.evaluation import methods

    targets = {k: tables["post_softmax"].layer_targets(k) for k in KS}
    yield [methods.top_k(k, targets[k]) for k in KS]
    for placement in ("post_softmax", "pre_softmax"):
        for compensated in (True, False):
            yield [methods.top_theta(tables[placement], k, compensated=compensated) for k in KS]
    yield [methods.top_theta(live, LIVE_K, compensated=True, family="Top-θ post + VMC, live")]
    yield [methods.value_mean_only(targets[KS[0]])]


def compare(
    bar: Progress, evaluation: PerplexityTask, tables: dict[str, ThresholdTable], live: ThresholdTable
) -> list[Result]:
    """Every method, then the controls that read as many V rows as Top-θ post + VMC did."""
    from toptheta_npu.evaluation import methods

    task = bar.add_task("dense", total=3 + 6 * len(KS) + len(RANDOM_KS))

    def run(method: Method) -> Result:
        bar.update(task, description=f"{method.family} {method.k or ''}")
        result = evaluation.evaluate(method)
        bar.advance(task)
        return result

    results = [run(methods.dense())]
    for family in list_methods(tables, live):
        results += [run(method) for method in family]
    group = evaluation.model.config.num_attention_heads // evaluation.model.config.num_key_value_heads
    read = {r.k: round(r.reads.value_rows_mean) for r in results if r.family == "Top-θ post + VMC"}
    keys = round(results[0].reads.keys_mean)
    for k in KS:
        results.append(run(methods.last_k(k, read[k], tables["post_softmax"].layer_targets(k))))
    for k in RANDOM_KS:
        targets = tables["post_softmax"].layer_targets(k)
        results.append(run(methods.random_k(k, read[k], group, targets, keys)))
    return results


def continue_side_by_side(
    console: Console, model: Any, tokenizer: Any, prompt: torch.Tensor, table: ThresholdTable, new_tokens: int
) -> None:
    """Greedy continuations of one prompt, dense and by thresholds, decoded through the operator."""
    from toptheta_npu.evaluation.methods import DENSER_LAYERS
    from toptheta_npu.models import sparsify

    options = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    dense = model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]), **options)[0]
    with sparsify(model, table, k=LIVE_K, statistics=True) as recording:
        sparse = model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]), **options)[0]
    rows = (
        torch.cat([layer.value_rows.flatten() for layer in recording.statistics()[DENSER_LAYERS:]])
        .float()
        .mean()
        .item()
    )
    texts = [tokenizer.decode(tokens[len(prompt) :]) for tokens in (dense, sparse)]
    titles = (
        f"dense: {len(prompt)} V rows and more per step",
        f"Top-θ post + VMC, k={LIVE_K}: {rows:.0f} V rows per step",
    )
    panels = [Panel(text, title=title, width=58) for text, title in zip(texts, titles, strict=True)]
    context = tokenizer.decode(prompt[-60:])
    console.print(Panel(context, title="the end of a held-out prompt, to be continued", width=118))
    console.print(Columns(panels))
    pairs = zip(dense[len(prompt) :].tolist(), sparse[len(prompt) :].tolist(), strict=False)
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    console.print(f"The first {common} of {new_tokens} tokens agree.")
