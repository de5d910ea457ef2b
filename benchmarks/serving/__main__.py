"""Drawn schedules in vLLM by thresholds: how many tokens are wrong, what was kept, and how fast it decodes.

    build/vllm/bin/python -m benchmarks.serving [--schedules 200] [--rounds 5] [--out FILE]

It needs the environment of ``make test-vllm``. It writes docs/results/serving.json and the table of docs/serving.md.
About a quarter of an hour on two cores; tokens per second are a ratio of interleaved rounds in one process.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

# before vLLM is imported: engines live in this process
os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"})

import torch
import typer
import vllm

from benchmarks.serving.engines import greedy, make_engine, prompts, totals
from benchmarks.serving.schedules import SMALL_CACHE, draw_schedule, run_schedule, wrong_in
from benchmarks.serving.tables import as_tables
from benchmarks.tables import renew

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
RESULTS = PAGE.parent / "results" / "serving.json"
K = 64
#: Sequences that decode side by side, keys of each at the start, and tokens that are timed.
BATCH, PROMPT, NEW_TOKENS = 4, 1900, 64


def main(
    schedules: Annotated[int, typer.Option(min=1, help="How many are drawn.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of the timing.")] = 5,
    out: Annotated[Path, typer.Option(help="The JSON file that is written.")] = RESULTS,
) -> None:
    """Writes what was found to a JSON file; ends with 1 if a token is wrong."""
    found: dict[str, Any] = {
        "model": "the embedded LLaMA, float32", "k": K, "vmc": False, "vllm": vllm.__version__,
        "torch": torch.__version__, "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(), "speed": compare_speed(rounds),
    }  # fmt: skip
    for found["schedules"] in run_schedules(schedules):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n")
    typer.echo(json.dumps(found, indent=1))
    if out == RESULTS:
        renew(PAGE, as_tables(found))
    if found["schedules"]["wrong_tokens"]:
        raise typer.Exit(1)


def run_schedules(count: int) -> Iterator[dict[str, Any]]:
    """Wrong tokens and what was kept over schedules with the seeds 0 to ``count`` - 1, in a cache that preempts.

    Told after every ten of them.
    """
    engine = make_engine({"k": K}, **SMALL_CACHE)
    wrong: list[str] = []
    different: list[str] = []
    tokens = preemptions = requests = 0
    for seed in range(count):
        for index, request in enumerate(run_schedule(engine, draw_schedule(seed))):
            assert request.answer is not None
            for found, added in zip((wrong, different), wrong_in(request, k=K, vmc=False), strict=True):
                found += [f"schedule {seed}, request {index}: {each}" for each in added]
            tokens += len(request.answer.tokens)
            preemptions += request.preemptions
            requests += 1
        if seed % 10 == 9 or seed + 1 == count:
            typer.echo(
                f"{seed + 1} schedules, {tokens} tokens, {preemptions} preemptions, {len(wrong)} wrong", err=True
            )
            kept = totals(engine)
            yield {
                "count": seed + 1, "requests": requests, "tokens": tokens, "preemptions": preemptions,
                "wrong_tokens": len(wrong), "wrong": wrong[:20],
                "different_log_probabilities": different, "kept_share": kept.kept / kept.elements,
                "value_row_share": kept.value_rows / kept.available_value_rows,
                "kept_over_k": kept.sparse_kept / kept.sparse_aims, "decode_tokens": kept.decode_tokens,
                "prompt_tokens": kept.prompt_tokens,
            }  # fmt: skip


def compare_speed(rounds: int) -> dict[str, Any]:
    """Decoded tokens per second, dense and by thresholds, in rounds that take turns."""
    engines = {"dense": make_engine(), "sparse": make_engine({"k": K})}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for round_ in range(rounds + 1):  # the first one warms up
        for name, engine in engines.items():
            rate = decode_rate(engine, seed=round_)
            if round_:
                rates[name].append(rate)
    ratios = [sparse / dense for dense, sparse in zip(rates["dense"], rates["sparse"], strict=True)]
    kept = totals(engines["sparse"])
    return {
        "batch": BATCH, "keys": PROMPT, "new_tokens": NEW_TOKENS, "rounds": rounds,
        "tokens_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "sparse_over_dense": statistics.median(ratios), "ratios": ratios,
        "kept_share": kept.kept / kept.elements, "value_row_share": kept.value_rows / kept.available_value_rows,
    }  # fmt: skip


def decode_rate(engine: Any, seed: int) -> float:
    """Tokens per second of the steps that only decode."""
    llm = engine.llm_engine
    for index, ids in enumerate(prompts(*[PROMPT] * BATCH, seed=seed)):
        llm.add_request(f"{seed}:{index}", {"prompt_token_ids": ids}, greedy(NEW_TOKENS))
    counts = {f"{seed}:{index}": 0 for index in range(BATCH)}
    while not all(counts.values()):
        for output in llm.step():
            counts[output.request_id] = len(output.outputs[0].token_ids)
    before, start = sum(counts.values()), time.perf_counter()
    while llm.has_unfinished_requests():
        llm.step()
    return (BATCH * NEW_TOKENS - before) / (time.perf_counter() - start)


if __name__ == "__main__":
    typer.run(main)
