"""What drift control costs on this CPU: the operator with counts over the one without, and a whole decode step.

    python -m benchmarks.drift_control_cost

Both operators and both steps take turns, so that the machine's moods are the same for them. The figures go to
docs/results/calibration/drift_control_cost.json.
"""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from transformers import DynamicCache

import toptheta_npu
from benchmarks.tables import Goal, goal_table
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation.corpus import token_windows
from toptheta_npu.models import DriftControl, sparsify
from toptheta_npu.timing.report import one_row_a_line

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "calibration" / "drift_control_cost.json"
_PROMPT, _TOKENS, _K = 2048, 24, 64


def interleaved(calls: Sequence[Callable[[], object]], rounds: int, number: int) -> list[float]:
    """Measure the median seconds of a call of each. The calls run in turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for index in range(len(calls)) if turn % 2 else reversed(range(len(calls))):
            started = time.perf_counter()
            for _ in range(number):
                calls[index]()
            if turn:  # the first turn warms up
                seconds[index].append((time.perf_counter() - started) / number)
    return [torch.tensor(values).median().item() for values in seconds]


def operators(length: int) -> list[float]:
    """Time the operator in seconds without counts and with them: 32 heads on 8 KV heads of 128, bfloat16, k = 64."""
    torch.manual_seed(0)
    query = torch.randn(1, 32, 1, 128).bfloat16()
    key, value = (torch.randn(1, 8, length, 128).bfloat16() for _ in range(2))
    scores = (query.float().view(8, 4, 128) @ key[0].float().transpose(1, 2)).flatten(0, 1) / 128**0.5
    theta = scores.topk(_K + 1, dim=-1).values[:, -1]
    mean = value.float().mean(2)
    plain, counted = (
        lambda call=call: call(query, key, value, theta, value_mean=mean)
        for call in (toptheta_npu.incremental_attention, toptheta_npu.incremental_attention_with_stats)
    )
    return interleaved([plain, counted], rounds=31, number=max(1, 65536 // length))


def steps() -> list[float]:
    """Time a token of the embedded model in seconds: dense, by thresholds, and by thresholds with drift control."""
    model, tokenizer = load_tiny_llama()
    tokens = token_windows(tokenizer, "evaluation", _PROMPT + _TOKENS, 1)
    table = load_tiny_llama_thresholds("post_softmax")
    contexts = [nullcontext, lambda: sparsify(model, table, k=_K),
                lambda: sparsify(model, table, k=_K, drift_control=DriftControl())]  # fmt: skip
    prefix = DynamicCache()
    model(tokens[:, :_PROMPT], past_key_values=prefix, logits_to_keep=1)
    seconds: list[list[float]] = [[] for _ in contexts]
    for _, (index, context) in itertools.product(range(12), enumerate(contexts)):
        cache = DynamicCache([(layer.keys, layer.values) for layer in prefix.layers])
        with context():
            for at in range(_PROMPT, _PROMPT + _TOKENS):
                started = time.perf_counter()
                model(tokens[:, at : at + 1], past_key_values=cache)
                if at >= _PROMPT + 4:  # the first steps sum up V and make the state
                    seconds[index].append(time.perf_counter() - started)
    return [torch.tensor(values).median().item() for values in seconds]


def main(output: Annotated[Path, typer.Option(help="Where the figures go.")] = RESULTS) -> None:
    """Measure, print the ratios and write them."""
    found = {}
    with torch.inference_mode(), toptheta_npu.use_backend("native", device="cpu"):
        for length in (2048, 16384):
            plain, counted = operators(length)
            found[f"operator with counts over without, {length} keys"] = counted / plain
        dense, sparse, controlled = steps()
    found[f"decode step with drift control over without, embedded model, {_PROMPT} keys"] = controlled / sparse
    found[f"decode step with drift control over dense, embedded model, {_PROMPT} keys"] = controlled / dense
    environment = {"python": platform.python_version(), "torch": torch.__version__,
                   "threads": torch.get_num_threads(), "milliseconds_of_a_step": 1e3 * sparse}  # fmt: skip
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(one_row_a_line({"environment": environment, "ratios": found}) + "\n")
    table = goal_table([Goal(*row) for row in found.items()], title="Cost of drift control")
    Console(width=max(Console().width, 120)).print(table.as_rich())


if __name__ == "__main__":
    typer.run(main)
