"""What an int8 cache gains over one of the model's dtype, both by thresholds, in rounds that take turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.serving.engines import INT8, LONGEST, K, answers, layers_of, make_engine, prompts
from benchmarks.serving.load import DECODING, decode_rate

DTYPES = ("bfloat16", "float32")


def compare_int8(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the comparisons so far: tokens per second of steps that only decode, and bytes of a token in all layers."""
    found: dict[str, Any] = {"rounds": rounds, "decoding": []}
    for dtype in DTYPES:
        options: dict[str, Any] = {
            "max_model_len": 2 * LONGEST, "kv_cache_memory_bytes": 1 << 29, "enable_prefix_caching": True,
            "dtype": dtype,
        }  # fmt: skip
        settings = {"k": K, "dense_below": None}
        engines = [make_engine(settings, **options), make_engine(settings, **options, **INT8)]
        sizes = [_token_bytes(engine) for engine in engines]
        for batch, keys in DECODING:
            rates = [[decode_rate(engine, batch, keys, each) for engine in engines] for each in range(rounds + 1)]
            found["decoding"].append({
                "dtype": dtype, "batch": batch, "keys": keys, "token_bytes": sizes,
                "over_same": [int8 / same for same, int8 in rates[1:]],  # the first one warms up
            })  # fmt: skip
            yield found


def _token_bytes(engine: Any) -> int:
    """Count the bytes of a token in the caches of all layers."""
    answers(engine, prompts(40), 2)
    caches = [layer.kv_cache for layer in layers_of(engine)]
    return sum(cache.nbytes // (cache.shape[0] * cache.shape[2]) for cache in caches)
