"""The bytes of the V sums beside those of the cache, as they are in engines that have answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.serving.engines import K, answers, layers_of, make_engine, prompts

DTYPES = ("float32", "bfloat16")
BLOCK_SIZES = (32, 128)


def measure_page_sums() -> Iterator[dict[str, Any]]:
    """Measure bytes of all layers by the dtype of the cache and the tokens of a page, beside what the formula says."""
    found: list[dict[str, Any]] = []
    for dtype in DTYPES:
        for block_size in BLOCK_SIZES:
            engine = make_engine({"k": K}, dtype=dtype, block_size=block_size)
            answers(engine, prompts(100), 2)
            layers = layers_of(engine)
            cache = sum(layer.kv_cache.nbytes for layer in layers)
            sums = sum(layer.impl.rule.page_sums.nbytes for layer in layers)
            pages, heads, _, width = layers[0].kv_cache.shape  # keys and values of a token side by side
            found.append({
                "dtype": dtype, "block_size": block_size, "pages": pages, "layers": len(layers), "kv_heads": heads,
                "head_dim": width // 2, "cache_bytes": cache, "sum_bytes": sums,
                "formula_bytes": len(layers) * (pages * block_size // 32 + 1) * 4 * heads * width // 2,
            })  # fmt: skip
        yield {"engines": found}
