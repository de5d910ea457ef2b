"""How fast engines answer, dense and by thresholds, in rounds that take turns in one process."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.engines import LONGEST, K, make_engine, prompts, totals
from toptheta_npu.vllm.metrics import Totals

#: Sequences that decode side by side, and keys of each in the middle of what is timed.
DECODING = ((4, 1900), (16, 1900), (8, 3800))
DECODED = 48
BATCHES, LENGTHS = (1, 4, 16), (128, 256, 512, 1024, 1900, 3800)
OPTIONS: dict[str, Any] = {
    "max_model_len": 2 * LONGEST, "max_num_seqs": 16, "kv_cache_memory_bytes": 1 << 29, "enable_prefix_caching": True,
}  # fmt: skip
#: Settings of the plug-in, among them the default for short rows.
SETTINGS: dict[str, Any] = {"k": K, "dense_below": None}


@dataclass(frozen=True)
class Load:
    """Requests that wait for an engine which answers ``at_once`` of them side by side."""

    requests: int = 20
    at_once: int = 16
    prompts: tuple[int, int] = (600, 1200)
    new_tokens: tuple[int, int] = (96, 192)


LOAD = Load()


def compare_speed(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure requests per second under load, and tokens per second of steps that only decode, over dense vLLM."""
    dense, sparse = make_engine(**OPTIONS), make_engine(SETTINGS, **OPTIONS)
    load: dict[str, Any] = {
        "requests": LOAD.requests, "at_once": LOAD.at_once, "prompts": LOAD.prompts, "new_tokens": LOAD.new_tokens
    }  # fmt: skip
    before, over_dense = totals(sparse), list[float]()
    for round_ in range(rounds + 1):
        seconds = [answer_all(engine, round_) for engine in (dense, sparse)]
        if round_:  # the first one warms up
            over_dense.append(seconds[0] / seconds[1])
    load |= {"over_dense": over_dense, "kept": shares(totals(sparse) - before)}
    found: dict[str, Any] = {"rounds": rounds, "load": load, "decoding": []}
    for batch, keys in DECODING:
        before = totals(sparse)
        ratios = decoding_ratios(dense, sparse, batch, keys, rounds)
        kept = shares(totals(sparse) - before)
        found["decoding"].append({"batch": batch, "keys": keys, "over_dense": ratios, "kept": kept})
        yield found


def find_break_even(rounds: int) -> Iterator[dict[str, Any]]:
    """Find from which row length on thresholds are as fast as vLLM's own kernel, where no row is too short for them."""
    dense, sparse = make_engine(**OPTIONS), make_engine({"k": K}, **OPTIONS)
    found: dict[str, Any] = {"rounds": rounds, "k": K, "steps": []}
    for batch in BATCHES:
        for keys in LENGTHS:
            ratios = decoding_ratios(dense, sparse, batch, keys, rounds)
            found["steps"].append({"batch": batch, "keys": keys, "over_dense": ratios})
            yield found


def answer_all(engine: Any, seed: int) -> float:
    """Time in seconds how an engine answers the requests of one round, prompts included."""
    draw = random.Random(seed)
    asked = prompts(*(draw.randint(*LOAD.prompts) for _ in range(LOAD.requests)), seed=seed)
    llm = engine.llm_engine
    llm.reset_prefix_cache()
    start = time.perf_counter()
    for index, ids in enumerate(asked):
        llm.add_request(f"load:{seed}:{index}", {"prompt_token_ids": ids}, likeliest(draw.randint(*LOAD.new_tokens)))
    while llm.has_unfinished_requests():
        llm.step()
    return time.perf_counter() - start


def decoding_ratios(first: Any, second: Any, batch: int, keys: int, rounds: int) -> list[float]:
    """Divide the second engine's decode rate by the first's, in rounds that take turns."""
    ratios = []
    for round_ in range(rounds + 1):  # the first one warms up and leaves the prompts in the cache
        rates = [decode_rate(engine, batch, keys, round_) for engine in (first, second)]
        ratios.append(rates[1] / rates[0])
    return ratios[1:]


def decode_rate(engine: Any, batch: int, keys: int, round_: int) -> float:
    """Measure tokens per second of the steps in which all sequences decode. All rounds have the same prompts."""
    llm = engine.llm_engine
    counts = {f"decode:{batch}:{keys}:{round_}:{index}": 0 for index in range(batch)}
    for name, ids in zip(counts, prompts(*[keys - DECODED // 2] * batch, seed=keys), strict=True):
        llm.add_request(name, {"prompt_token_ids": ids}, likeliest(DECODED))
    while not all(counts.values()):
        for output in llm.step():
            counts[output.request_id] = len(output.outputs[0].token_ids)
    before, start = sum(counts.values()), time.perf_counter()
    while llm.has_unfinished_requests():
        llm.step()
    return (batch * DECODED - before) / (time.perf_counter() - start)


def likeliest(new_tokens: int) -> Any:
    """Make the parameters that sample the likeliest token, and nothing else."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)


def shares(added: Totals) -> dict[str, float]:
    """Compute what rows kept of their elements, and read of the V rows."""
    return {
        "kept_share": added.kept / added.elements,
        "value_row_share": added.value_rows / added.available_value_rows,
    }
