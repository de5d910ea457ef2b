"""What thresholds after the softmax gain on a CPU, and before it: the same rows by probabilities and by scores.

    python -m benchmarks.placements

`sparsify(model, tau=...)` compares probabilities. All rows run in the same rounds over cold caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.tables import show
from toptheta_npu import incremental_attention, incremental_attention_with_stats
from toptheta_npu._tables import Table
from toptheta_npu.fallback.reference import attention_scores
from toptheta_npu.fallback.sampled import sampled_lse
from toptheta_npu.timing.clocks import interleaved_medians
from toptheta_npu.timing.environment import cache_bytes
from toptheta_npu.timing.inputs import Inputs, count_copies, make_inputs
from toptheta_npu.timing.report import short_name
from toptheta_npu.timing.shapes import Shape, parse_shape

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


def as_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate how many times as fast as reading all of V each placement is."""
    names = ("pre_softmax", "post_softmax", "sampled")
    rows = [
        [short_name(parse_shape(row["shape"])), *(f"{row['dense'] / row[name]:.2f}" for name in names)] for row in found
    ]
    columns = ("shape", "by scores", "by probabilities, as with tau", 'tau by a sample, lse="sampled"')
    return Table("By placement", columns, rows)


if __name__ == "__main__":
    show(as_table([measure(parse_shape(text), cache_bytes("cpu"), _ROUNDS) for text in SHAPES]))
