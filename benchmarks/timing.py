"""Interleaved timing: every variant of a row runs in the same rounds, so that ratios survive a noisy machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def last_level_cache_bytes(default: int = 32 << 20) -> int:
    """Size of the largest CPU cache, as Linux tells it."""
    sizes = [default]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes)


def interleaved_medians(
    variants: Mapping[str, Callable[[int], object]], copies: int, rounds: int
) -> dict[str, tuple[float, float, float]]:
    """Median, p10 and p90 in seconds of each variant.

    A variant is called with the number of the copy of the data to use. Each round runs every variant once,
    in an order reversed every other round, each on another copy than the one before it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    copy = 0
    for call in variants.values():
        call(copy)
    for round_number in range(rounds):
        order = names if round_number % 2 == 0 else names[::-1]
        for name in order:
            copy = (copy + 1) % copies
            started = time.perf_counter()
            variants[name](copy)
            seconds[name].append(time.perf_counter() - started)
    return {name: _summary(values) for name, values in seconds.items()}


def _summary(values: list[float]) -> tuple[float, float, float]:
    middle, low, high = torch.tensor(values, dtype=torch.float64).quantile(
        torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
    )
    return middle.item(), low.item(), high.item()
