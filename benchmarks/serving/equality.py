"""Answers of vLLM by thresholds beside those of vLLM as it is, and of `sparsify` and transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.engines import (
    Answer,
    K,
    answers,
    dense_table,
    differences,
    generated,
    make_engine,
    prompts,
    totals,
    wrong_tokens,
)

RAGGED = (700, 1, 33, 1400, 64, 128, 257, 2)
NEW_TOKENS = 32


def compare_answers() -> Iterator[dict[str, Any]]:
    """Yield the comparisons so far: tokens compared, wrong ones, and by how much log-probabilities differ."""
    found: list[dict[str, Any]] = []
    asked = prompts(*RAGGED)
    stock = answers(make_engine(), asked, NEW_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        keeping_all = make_engine({"table": str(dense_table(Path(folder))), "k": K})
        ours = answers(keeping_all, asked, NEW_TOKENS)
    found.append(compared("θ = -∞", "vLLM as it is", keeping_all, ours, stock))
    asked = prompts(700, 1500, 300)
    for name, settings in (
        ("k = 64", {}),
        ("k = 64, `vmc` off", {"vmc": False}),
        ("k = 64, prompts by thresholds too", {"prefill": "thresholded"}),
    ):
        engine = make_engine({"k": K, **settings})
        ours = answers(engine, asked, NEW_TOKENS)
        reference = [generated(ids, NEW_TOKENS, k=K, **settings) for ids in asked]
        found.append(compared(name, "`generate` within `sparsify`", engine, ours, reference))
        yield {"new_tokens": NEW_TOKENS, "answers": found}


def compared(
    what: str, reference_name: str, engine: Any, ours: Sequence[Answer], reference: Sequence[Answer]
) -> dict[str, Any]:
    """Sum up the comparison of all answers."""
    pairs = list(zip(ours, reference, strict=True))
    apart = [each for pair in pairs for each in differences(*pair)]
    kept = totals(engine)
    return {
        "what": what, "reference": reference_name, "requests": len(pairs), "tokens": len(apart),
        "wrong_tokens": sum(len(wrong_tokens(*pair)) for pair in pairs), "largest_difference": max(apart),
        "kept_share": kept.kept / kept.elements, "value_row_share": kept.value_rows / kept.available_value_rows,
    }  # fmt: skip
