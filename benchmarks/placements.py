"""What thresholds after the softmax gain on a CPU, and before it: the same rows by probabilities and by scores.

    python -m benchmarks.placements --write

`sparsify(model, tau=...)` compares probabilities. All rows run in the same rounds over cold caches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.tables import renew, rounded
from toptheta_npu import incremental_attention, incremental_attention_with_stats
from toptheta_npu._tables import Table
from toptheta_npu.fallback.reference import attention_scores
from toptheta_npu.fallback.sampled import sampled_lse
from toptheta_npu.timing.clocks import interleaved_medians
from toptheta_npu.timing.environment import cache_bytes, environment
from toptheta_npu.timing.inputs import Inputs, count_copies, make_inputs
from toptheta_npu.timing.report import one_row_a_line, short_name
from toptheta_npu.timing.shapes import Shape, parse_shape

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
RESULTS = PAGE.parent / "results" / "placements.json"
SHAPES = (
    "heads=32/8,n=2048,k=128,dtype=bfloat16", "heads=32/8,n=8192,k=128,dtype=bfloat16",
    "heads=32/8,n=32768,k=512,dtype=bfloat16", "heads=48/48,n=2048,k=128,dtype=bfloat16",
    "heads=32/8,n=8192,k=128,dtype=float32",
)  # fmt: skip
_ROUNDS = 40


def measure(shape: Shape, cache: int, rounds: int) -> dict[str, Any]:
    """Time one shape, over caches that are larger than ``cache`` bytes: medians in seconds."""
    inputs = make_inputs(shape, "cpu", count_copies(shape, cache, cold=True))
    calls = variants(inputs)
    timings = interleaved_medians(calls, len(inputs.layers), rounds)
    return {"shape": str(shape), **{name: timing.median for name, timing in timings.items()}}


def variants(inputs: Inputs) -> dict[str, Callable[[int], torch.Tensor]]:
    """Make the calls to time, with thresholds that keep the same elements.

    Raises:
        AssertionError: they do not.
    """
    key, value = inputs.layers[0]
    plain = incremental_attention_with_stats(inputs.query, key, value, inputs.threshold)
    probability = (inputs.threshold - plain[1]).exp()
    post = incremental_attention_with_stats(inputs.query, key, value, probability, placement="post_softmax")
    assert (plain[2] - post[2]).abs().max() <= 1, "a score may lie at its threshold, and no more than that"
    everything = torch.full_like(inputs.threshold, -math.inf)

    def call(threshold: torch.Tensor, **options: Any) -> Callable[[int], torch.Tensor]:
        return lambda copy: incremental_attention(inputs.query, *inputs.layers[copy], threshold, **options)

    by_sample = _probability_by_sample(inputs, key)
    sampled = incremental_attention_with_stats(inputs.query, key, value, by_sample, placement="sampled_softmax")
    assert (plain[2] - sampled[2]).abs().max() <= 1, "the same"

    return {
        "dense": call(everything), "pre_softmax": call(inputs.threshold),
        "post_softmax": call(probability, placement="post_softmax"),
        "sampled": call(by_sample, placement="sampled_softmax"),
    }  # fmt: skip


def _probability_by_sample(inputs: Inputs, key: torch.Tensor) -> torch.Tensor:
    """Make the probabilities [B, Hq] that keep as much where the LSE is that of a sample of keys."""
    query = inputs.query[:, :, 0].float()
    scores = attention_scores(query, key.float(), query.shape[-1] ** -0.5)
    counts = torch.full((len(query),), key.shape[2])
    return (inputs.threshold - sampled_lse(scores, counts, torch.zeros_like(counts))).exp()


def gains() -> tuple[list[float], ...]:
    """List how many times as fast as reading all of V the stored shapes are: by scores, probabilities, and a sample."""
    rows = json.loads(RESULTS.read_text())["rows"]
    names = ("pre_softmax", "post_softmax", "sampled")
    return tuple([row["dense"] / row[name] for row in rows] for name in names)


def tables() -> dict[str, Table]:
    """Make the table by the name of its place, from the committed results."""
    shapes = [short_name(parse_shape(row["shape"])) for row in json.loads(RESULTS.read_text())["rows"]]
    rows = [[shape, *(f"{gain:.2f}" for gain in both)] for shape, *both in zip(shapes, *gains(), strict=True)]
    columns = ("shape", "by scores", "by probabilities, as with tau", 'tau by a sample, lse="sampled"')
    return {"placements": Table("By placement", columns, rows)}


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/performance.md and its results.")] = False,
) -> None:
    """Measure, and print how many times as fast as reading all of V each placement is."""
    found = [rounded(measure(parse_shape(text), cache_bytes("cpu"), _ROUNDS)) for text in SHAPES]
    if write:
        RESULTS.write_text(one_row_a_line({"environment": environment("cpu"), "rows": found}) + "\n")
        renew(PAGE, tables())
    for row in found:
        Console().print(row)


if __name__ == "__main__":
    typer.run(main)
