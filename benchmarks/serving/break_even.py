"""From which row length on thresholds are as fast as vLLM's own kernel: steps that only decode, by batch and length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.serving.engines import LONGEST, K, make_engine
from benchmarks.serving.load import decode_rate

BATCHES, LENGTHS = (1, 4, 16), (128, 256, 512, 1024, 1900, 3800)


def find_break_even(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure the steps of a dense engine and of one in which no row is too short for thresholds, in turns."""
    options: dict[str, Any] = {
        "max_model_len": 2 * LONGEST, "max_num_seqs": BATCHES[-1], "kv_cache_memory_bytes": 1 << 29,
        "enable_prefix_caching": True,
    }  # fmt: skip
    engines = {"dense": make_engine(**options), "sparse": make_engine({"k": K}, **options)}
    found: dict[str, Any] = {"rounds": rounds, "k": K, "steps": []}
    for batch in BATCHES:
        for keys in LENGTHS:
            ratios = []
            for round_ in range(rounds + 1):  # the first one warms up and leaves the prompts in the cache
                rates = {name: decode_rate(engine, batch, keys, round_) for name, engine in engines.items()}
                ratios.append(rates["sparse"] / rates["dense"])
            found["steps"].append({"batch": batch, "keys": keys, "over_dense": ratios[1:]})
            yield found
