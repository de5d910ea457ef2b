"""What a calibration takes against the plain forward pass of the same prompt: the embedded model, on two threads.

    python -m benchmarks.calibration_prefill

About a minute on two cores, under Linux. Each calibration runs between two plain forward passes, and its ratio is
formed with these two.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import toptheta_npu
from benchmarks.tables import Table, show
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.evaluation.corpus import token_windows
from toptheta_npu.timing.clocks import summarise

_LENGTH, _ROUNDS, _THREADS = 2048, 9, 2
_FORWARD = "plain forward pass"
_POOLED: Mapping[str, Any] = {"k": (32, 64, 128, 256, 512), "estimator": "pooled", "top_k_at_calibration": False}
#: By its name in the table: the options of `calibrate`.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "Algorithm 1, k = 128": {"k": 128},
    "Algorithm 1, k = 128, one row in ten": {"k": 128, "row_fraction": 0.1},
    "Algorithm 1, k = 128, dense attention": {"k": 128, "top_k_at_calibration": False},
    "quantile 0.9, k = 128": {"k": 128, "estimator": "quantile", "quantile": 0.9},
    "pooled, k = 128": {"k": 128, "estimator": "pooled"},
    "pooled, k = 32 to 512, dense attention": _POOLED,
    "pooled, k = 32 to 512, dense attention, one row in ten": {**_POOLED, "row_fraction": 0.1},
}


def measure(rounds: int = _ROUNDS) -> dict[str, dict[str, float]]:
    """Measure each variant: median, p10 and p90 of its times over the plain forward pass, and its memory in MiB."""
    threads = torch.get_num_threads()
    torch.set_num_threads(_THREADS)
    try:
        return _measure(rounds)
    finally:
        torch.set_num_threads(threads)


def _measure(rounds: int) -> dict[str, dict[str, float]]:
    model, tokenizer = load_tiny_llama()
    text = token_windows(tokenizer, "calibration", _LENGTH, 1)

    def forward() -> None:
        with torch.inference_mode():
            model(text)

    calls = {name: _calibration(model, text, options) for name, options in VARIANTS.items()}
    memory = {name: _peak_mib(call) for name, call in {_FORWARD: forward, **calls}.items()}
    ratios: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        before = _seconds(forward)
        for name in list(calls)[:: 1 if number % 2 == 0 else -1]:
            own, after = _seconds(calls[name]), _seconds(forward)
            ratios[name].append(2 * own / (before + after))
            before = after
    figures = {name: {**summarise(values)._asdict(), "mib": memory[name]} for name, values in ratios.items()}
    return {_FORWARD: {"median": 1.0, "p10": 1.0, "p90": 1.0, "mib": memory[_FORWARD]}, **figures}


def _calibration(model: Any, text: torch.Tensor, options: Mapping[str, Any]) -> Callable[[], object]:
    return lambda: toptheta_npu.calibrate(model, text, placement="pre_softmax", **options)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _peak_mib(call: Callable[[], object]) -> float:
    """Measure the most memory that the process takes during a call, in MiB above what it had before."""
    call()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    call()
    return _status_mib("VmHWM") - before


def _status_mib(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError(f"no {name} in /proc/self/status")
    return int(found[1]) / 1024


def as_table(figures: Mapping[str, Mapping[str, float]]) -> Table:
    """Tabulate how many times as long as the plain forward pass each takes, and the memory."""
    rows = [[_FORWARD, "1.00", "", f"{figures[_FORWARD]['mib']:.0f}"]]
    for name in VARIANTS:
        own = figures[name]
        rows.append([name, f"{own['median']:.2f}", f"{own['p10']:.2f} to {own['p90']:.2f}", f"{own['mib']:.0f}"])
    title = f"Calibration on a prompt of {_LENGTH} tokens, {_THREADS} threads"
    return Table(title, ("", "times as long", "p10 to p90", "memory, MiB"), rows)


if __name__ == "__main__":
    show(as_table(measure()))
