"""Tokens per second of generate() with the embedded model on this CPU, dense and by thresholds.

    python -m benchmarks.generation

The same as ``toptheta benchmark-generate --device cpu``, as ratios.
"""

from __future__ import annotations

from rich.console import Console

from benchmarks.tables import Goal, goal_table
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation.corpus import token_windows
from toptheta_npu.timing import end_to_end

_PROMPT, _KS = 2048, [64, 128]


def goals() -> list[Goal]:
    """Measure tokens per second by thresholds over those of dense decoding."""
    model, tokenizer = load_tiny_llama()
    tokens = token_windows(tokenizer, "evaluation", _PROMPT, 1)
    thresholds = load_tiny_llama_thresholds("post_softmax")
    dense, *others = end_to_end.compare(model, thresholds, _KS, tokens, new_tokens=64, rounds=9)
    return [
        Goal(f"embedded model, {_PROMPT} tokens, {rate.name}, tokens per second against dense",
             dense.seconds.median / rate.seconds.median)
        for rate in others
    ]  # fmt: skip


if __name__ == "__main__":
    Console().print(goal_table(goals(), title="Tokens per second on a CPU").as_rich())
