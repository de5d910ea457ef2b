"""How fast engines answer, dense and by thresholds, in rounds that take turns in one process."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.engines import LONGEST, K, make_engine, prompts, totals
from toptheta_npu.vllm.metrics import Totals

#: In the order in which they take turns; the settings of the plug-in, among them the default for short rows.
ENGINES: dict[str, dict[str, Any] | None] = {"dense": None, "sparse": {"k": K, "dense_below": None}}
#: Sequences that decode side by side, and keys of each in the middle of what is timed.
DECODING = ((4, 1900), (16, 1900), (8, 3800))
DECODED = 48


@dataclass(frozen=True)
class Load:
    """Requests that wait for an engine which answers ``at_once`` of them side by side."""

    requests: int = 20
    at_once: int = 16
    prompts: tuple[int, int] = (600, 1200)
    new_tokens: tuple[int, int] = (96, 192)


LOAD = Load()


def compare_speed(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure requests and tokens per second under load, and tokens per second of steps that only decode."""
    options: dict[str, Any] = {
        "max_model_len": 2 * LONGEST, "max_num_seqs": LOAD.at_once, "kv_cache_memory_bytes": 1 << 29,
        "enable_prefix_caching": True,
    }  # fmt: skip
    engines = {name: make_engine(settings, **options) for name, settings in ENGINES.items()}
    found: dict[str, Any] = {"rounds": rounds, "load": _under_load(engines, rounds), "decoding": []}
    for batch, keys in DECODING:
        found["decoding"].append(_decoding(engines, batch, keys, rounds))
        yield found


def _under_load(engines: dict[str, Any], rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    before: dict[str, Totals] = {}
    tokens = []
    for round_ in range(rounds + 1):  # the first one warms up
        for name, engine in engines.items():
            if round_ <= 1 and ENGINES[name] is not None:
                before[name] = totals(engine)
            spent, answered = answer_all(engine, round_)
            if round_:
                seconds[name].append(spent)
                tokens += [answered] if name == "dense" else []
    return {
        "requests": LOAD.requests, "at_once": LOAD.at_once, "prompts": LOAD.prompts, "new_tokens": LOAD.new_tokens,
        "requests_per_second": _medians({name: [LOAD.requests / s for s in each] for name, each in seconds.items()}),
        "tokens_per_second": _medians(
            {name: [count / s for count, s in zip(tokens, each, strict=True)] for name, each in seconds.items()}
        ),
        "over_dense": _over_dense({name: [1 / s for s in each] for name, each in seconds.items()}),
        "kept": {name: shares(totals(engines[name]) - totals_then) for name, totals_then in before.items()},
    }  # fmt: skip


def answer_all(engine: Any, seed: int) -> tuple[float, int]:
    """Time in seconds how an engine answers the requests of one round, prompts included. Count the new tokens."""
    draw = random.Random(seed)
    asked = prompts(*(draw.randint(*LOAD.prompts) for _ in range(LOAD.requests)), seed=seed)
    wanted = [draw.randint(*LOAD.new_tokens) for _ in asked]
    llm = engine.llm_engine
    llm.reset_prefix_cache()
    start = time.perf_counter()
    for index, (ids, count) in enumerate(zip(asked, wanted, strict=True)):
        llm.add_request(f"load:{seed}:{index}", {"prompt_token_ids": ids}, likeliest(count))
    while llm.has_unfinished_requests():
        llm.step()
    return time.perf_counter() - start, sum(wanted)


def _decoding(engines: dict[str, Any], batch: int, keys: int, rounds: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in engines}
    before: dict[str, Totals] = {}
    for round_ in range(rounds + 1):  # the first one warms up and leaves the prompts in the cache
        for name, engine in engines.items():
            if round_ == 1 and ENGINES[name] is not None:
                before[name] = totals(engine)
            rate = decode_rate(engine, batch, keys, round_)
            if round_:
                rates[name].append(rate)
    return {
        "batch": batch, "keys": keys, "new_tokens": DECODED, "tokens_per_second": _medians(rates),
        "over_dense": _over_dense(rates),
        "kept": {name: shares(totals(engines[name]) - totals_then) for name, totals_then in before.items()},
    }  # fmt: skip


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


def _medians(values: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in values.items()}


def _over_dense(rates: dict[str, list[float]]) -> dict[str, list[float]]:
    """Divide the rates by the dense ones, round by round."""
    return {
        name: [rate / dense for rate, dense in zip(each, rates["dense"], strict=True)]
        for name, each in rates.items()
        if name != "dense"
    }


def shares(added: Totals) -> dict[str, float]:
    """Compute what rows kept of their elements, and read of the V rows."""
    return {
        "kept_share": added.kept / added.elements,
        "value_row_share": added.value_rows / added.available_value_rows,
    }
