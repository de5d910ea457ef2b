"""What calibration adds to the forward passes that it watches, with the embedded model.

    python -m benchmarks.calibration_prefill

Dense is the plain forward pass of the same texts; the other variants alternate with it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console

import toptheta_npu
from benchmarks.tables import Goal, goal_table
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.benchmark.clocks import interleaved_medians
from toptheta_npu.evaluation.corpus import token_windows

_LENGTH, _TEXTS, _ROUNDS = 2048, 1, 5
_DENSE = "dense"


def goals() -> list[Goal]:
    """Time of calibrating over that of the plain forward passes."""
    model, tokenizer = load_tiny_llama()
    texts = token_windows(tokenizer, "calibration", _LENGTH, _TEXTS)

    def forward(_: int) -> None:
        with torch.inference_mode():
            for text in texts:
                model(text[None])

    def calibrate(**options: object) -> Callable[[int], object]:
        return lambda _: toptheta_npu.calibrate(model, texts, **options)

    variants: dict[str, Callable[[int], object]] = {
        _DENSE: forward,
        "k = 128, Algorithm 1": calibrate(k=128),
        "k = 128, Algorithm 1, one row in ten": calibrate(k=128, row_fraction=0.1),
        "k = 128, Algorithm 1, dense attention": calibrate(k=128, top_k_at_calibration=False),
        "k = 32 to 512, pooled": calibrate(k=(32, 64, 128, 256, 512), estimator="pooled", top_k_at_calibration=False),
    }
    times = interleaved_medians(variants, copies=1, rounds=_ROUNDS)
    dense = times[_DENSE].median
    return [
        Goal(f"{name}, against the plain forward pass, times as long", timing.median / dense)
        for name, timing in times.items() if name != _DENSE
    ]  # fmt: skip


if __name__ == "__main__":
    title = f"Calibration on {_TEXTS} text of {_LENGTH} tokens against its plain forward pass"
    Console().print(goal_table(goals(), title=title).as_rich())
