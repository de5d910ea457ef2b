"""Decode steps of generate() with a model of yours: by thresholds over dense ones, by length, batch and dtype.

    python -m benchmarks.generation_of_a_model MODEL TABLE --text FILE [--text FILE ...]

MODEL is a folder that transformers loads, TABLE its thresholds, and each FILE is text of at least as many tokens as the
longest prompt; a batch takes one prompt from each of the first files. Other programs on the same cores spoil it; with
--cpu-time, which needs OMP_NUM_THREADS=1, the processor time of the process counts, which they spoil less.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from benchmarks.tables import Table, show
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.models import SparseRun, sparsify
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.timing import end_to_end
from toptheta_npu.timing.end_to_end import DENSE, GROWING, INFINITE, Variant

PROMPTS, BATCHES, DTYPES, K = (256, 512, 1024, 1500, 3000, 6000), (1, 4), ("float32", "bfloat16"), 128
_COUNTED_TOKENS = 4


def prompts_of(tokenizer: Any, texts: Sequence[Path], length: int) -> Tensor:
    """Read one prompt from each text: int64 [B, length].

    Raises:
        TopThetaValueError: a text is too short.
    """
    rows = []
    for text in texts:
        ids = tokenizer(text.read_text(), return_tensors="pt").input_ids[0, :length]
        if len(ids) < length:
            raise TopThetaValueError("--text", f"at least {length} tokens in {text}", str(len(ids)))
        rows.append(ids)
    return torch.stack(rows)


def measure(model: Any, table: ThresholdTable, tokens: Tensor, prompt: DynamicCache, **options: Any) -> dict[str, Any]:
    """Time the steps after these prompts, and count the bytes that a step has to read.

    Args:
        prompt: the cache of prompts that begin with these, but for the last token.
        options: of `end_to_end.compare`.
    """
    prompt = beginning(prompt, tokens.shape[1] - 1)
    share = value_row_share(model, table, tokens, prompt)
    rates = end_to_end.compare(model, table, [K], tokens, prompt=prompt, **options)
    batch, keys = tokens.shape
    config = model.config
    row_bytes = config.head_dim * config.num_key_value_heads * config.num_hidden_layers * model.dtype.itemsize
    return {
        "dtype": str(model.dtype).removeprefix("torch."), "batch": batch, "keys": keys, "value_row_share": share,
        # a tied embedding is read as the output layer
        "weight_bytes": sum(weight.nbytes for weight in model.parameters()), "key_bytes": batch * keys * row_bytes,
        "rates": end_to_end.as_json(rates),
    }  # fmt: skip


def beginning(prompt: DynamicCache, keys: int) -> DynamicCache:
    """Copy the first tokens of a cache."""
    made = DynamicCache()
    for number, layer in enumerate(prompt.layers):
        made.update(layer.keys[:, :, :keys], layer.values[:, :, :keys], number)
    return made


def value_row_share(model: Any, table: ThresholdTable, tokens: Tensor, prompt: DynamicCache) -> float:
    """Count the V rows that the decode steps after these prompts need, as a share of all."""
    runs: list[SparseRun] = []

    @contextmanager
    def counting() -> Iterator[None]:
        with sparsify(model, table, k=K, statistics=True) as run:
            runs.append(run)
            yield

    with torch.inference_mode():
        end_to_end.step_seconds(model, tokens, prompt, Variant(counting, end_to_end.growing), _COUNTED_TOKENS)
    layers = runs[0].statistics()
    needed = sum(int(layer.value_rows.sum()) for layer in layers)
    return needed / sum(int(layer.keys.sum()) * layer.value_rows.shape[1] for layer in layers)


def _seconds(result: Mapping[str, Any]) -> dict[str, float]:
    return {rate["name"]: rate["seconds_per_token"]["median"] for rate in result["rates"]}


def as_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate gains over `generate()` as it is, and the bound of what the threshold is worth."""
    columns = ("dtype", "batch", "keys", "top-θ", "cache alone", "θ=-inf", "over θ=-inf", "bound", "share", "V rows")
    return Table("Steps of generate() over those of dense generate()", columns, [_row(result) for result in results])


def _row(result: Mapping[str, Any]) -> list[str]:
    seconds = _seconds(result)
    gains = [seconds[DENSE] / seconds[name] for name in (f"k={K}", GROWING, INFINITE)]
    gain = seconds[INFINITE] / seconds[f"k={K}"]
    weights, keys, share = result["weight_bytes"], result["key_bytes"], result["value_row_share"]
    bound = (weights + 2 * keys) / (weights + keys + share * keys)
    figures = [f"{ratio:.2f}" for ratio in (*gains, gain, bound)]
    return [result["dtype"], str(result["batch"]), str(result["keys"]), *figures, f"{gain / bound:.0%}", f"{share:.3f}"]


def main(
    model: Annotated[Path, typer.Argument(help="Folder of a transformers model.")],
    table: Annotated[Path, typer.Argument(help="Its thresholds.")],
    text: Annotated[list[Path], typer.Option(help="Text of a prompt; again for further sequences of a batch.")],
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    new_tokens: Annotated[int, typer.Option(min=2, help="Per variant and round.")] = 17,
    keys: Annotated[list[int] | None, typer.Option(help="Tokens in the prompts; may be given again.")] = None,
    cpu_time: Annotated[bool, typer.Option("--cpu-time", help="Count the processor time of one thread.")] = False,
) -> None:
    """Measure all lengths, batches and dtypes, and print the table."""
    if cpu_time and torch.get_num_threads() > 1:
        raise typer.BadParameter("expected one thread, got more; set OMP_NUM_THREADS=1", param_hint="--cpu-time")
    clock = time.process_time if cpu_time else time.perf_counter
    thresholds, lengths = ThresholdTable.load(table), keys or PROMPTS
    ids = prompts_of(AutoTokenizer.from_pretrained(model), text, max(lengths))
    results = []
    for dtype in DTYPES:
        network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        for batch in [batch for batch in BATCHES if batch <= len(ids)]:
            prompt = end_to_end.prompt_cache(network, ids[:batch])
            for length in lengths:
                options = {"rounds": rounds, "new_tokens": new_tokens, "clock": clock}
                results.append(measure(network, thresholds, ids[:batch, :length], prompt, **options))
                print(*_row(results[-1]), flush=True)
    show(as_table(results))


if __name__ == "__main__":
    typer.run(main)
