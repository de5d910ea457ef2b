"""What a calibration takes against the plain forward pass of the same prompt: the embedded model, on two threads.

    python -m benchmarks.calibration_prefill

About a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import toptheta_npu
from benchmarks.tables import Table, show
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.evaluation.corpus import token_windows
from toptheta_npu.timing.clocks import interleaved_medians

_LENGTH, _ROUNDS, _THREADS = 2048, 9, 2
_FORWARD = "plain forward pass"
_POOLED: Mapping[str, Any] = {"k": (32, 64, 128, 256, 512), "estimator": "pooled", "top_k_at_calibration": False}
#: By its name in the table: the options of `calibrate`.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "Algorithm 1, k = 128": {"k": 128},
    "Algorithm 1, k = 128, one row in ten": {"k": 128, "row_fraction": 0.1},
    "Algorithm 1, k = 128, dense attention": {"k": 128, "top_k_at_calibration": False},
    "pooled, k = 128": {"k": 128, "estimator": "pooled"},
    "pooled, k = 32 to 512, dense attention": _POOLED,
    "pooled, k = 32 to 512, dense attention, one row in ten": {**_POOLED, "row_fraction": 0.1},
}


def measure() -> Table:
    """Tabulate how many times as long as the plain forward pass each variant takes."""
    torch.set_num_threads(_THREADS)
    model, tokenizer = load_tiny_llama()
    text = token_windows(tokenizer, "calibration", _LENGTH, 1)

    def forward(_: int) -> None:
        with torch.inference_mode():
            model(text)

    def calibration(options: Mapping[str, Any]) -> Callable[[int], object]:
        return lambda _: toptheta_npu.calibrate(model, text, placement="pre_softmax", **options)

    calls: dict[str, Callable[[int], object]] = {_FORWARD: forward}
    calls |= {name: calibration(options) for name, options in VARIANTS.items()}
    timings = interleaved_medians(calls, copies=1, rounds=_ROUNDS)
    rows = [[name, f"{timing.median / timings[_FORWARD].median:.2f}"] for name, timing in timings.items()]
    title = f"Calibration on a prompt of {_LENGTH} tokens, {_THREADS} threads"
    return Table(title, ("", "times as long"), rows)


if __name__ == "__main__":
    show(measure())
