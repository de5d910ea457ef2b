"""How time is taken: interleaved rounds on the clock of each device, and task durations from torch_npu's profiler.

Every variant runs in the same rounds, so that ratios survive a noisy machine.
"""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import TopThetaNotImplementedError
from ..npu.environment import has_emulated_devices

_OCCUPYING_ROWS = 4096  # a float16 matmul of this size takes an accelerator longer than a launch takes the host
#: Takes the call, and whether to run it once before.
Timer = Callable[[Callable[[], object], bool], float]
Variants = Mapping[str, Callable[[int], object]]


class Timing(NamedTuple):
    """Seconds of one call."""

    median: float
    p10: float
    p90: float


def is_emulated(device: str) -> bool:
    """Tell whether NPU tensors live on an emulated device, whose times say nothing."""
    return device == "npu" and has_emulated_devices()


def refuse_emulated(device: str) -> None:
    """Raise for an emulated device, after everything but the times.

    Raises:
        TopThetaNotImplementedError: the device is emulated.
    """
    if is_emulated(device):
        raise TopThetaNotImplementedError(
            "--device npu", "a device whose time means something", "an emulated one; times are refused",
            "answers were checked; run it on an Ascend NPU; a clone models its times: --device host-model",
        )  # fmt: skip


def make_timer(device: str) -> Timer:
    """Make the function that runs a call and gives its seconds. Told to, it runs the call once before, to be hot.

    Raises:
        TopThetaNotImplementedError: the device is emulated.
    """
    refuse_emulated(device)
    return _time_on_host if device == "cpu" else EventTimer(device)


def _time_on_host(call: Callable[[], object], reheat: bool) -> float:
    if reheat:
        call()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class EventTimer:
    """Timer by device events around one call. The host queues them while the device is busy with something else."""

    def __init__(self, device: str, occupying_rows: int = _OCCUPYING_ROWS) -> None:
        self._accelerator: Any = getattr(torch, device)
        self._block = torch.zeros((occupying_rows, occupying_rows), dtype=torch.float16, device=device)
        self._out = torch.empty_like(self._block)

    def __call__(self, call: Callable[[], object], reheat: bool) -> float:
        begin, end = (self._accelerator.Event(enable_timing=True) for _ in range(2))
        torch.mm(self._block, self._block, out=self._out)
        if reheat:
            call()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def interleaved_medians(
    variants: Variants, copies: int, rounds: int, timer: Timer = _time_on_host, reheat: bool = False
) -> dict[str, Timing]:
    """Measure median, p10 and p90 in seconds of each variant.

    A variant is called with the number of the copy of the data to use. Each round runs every variant once,
    in an order reversed every other round, each on another copy than the one before it. With
    ``reheat`` a variant runs twice and the second call counts, which finds the data where its own call left them.

    Example:
        >>> timings = interleaved_medians({"sum": lambda copy: sum(range(100))}, copies=1, rounds=3)
        >>> timings["sum"].median > 0
        True
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
            seconds[name].append(timer(partial(variants[name], copy), reheat))
    return {name: summarise(values) for name, values in seconds.items()}


def summarise(seconds: Sequence[float]) -> Timing:
    """Compute median, p10 and p90 of single calls."""
    places = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64, device="cpu")
    return Timing(*torch.tensor(seconds, dtype=torch.float64, device="cpu").quantile(places).tolist())


def npu_task_durations(variants: Variants, copies: int, calls: int) -> dict[str, Timing]:
    """Measure per variant the time of its kernels on the device by torch_npu's profiler: no launches, no gaps.

    A variant of which the profiler saw no kernel is left out.
    """
    import torch_npu

    profiler: Any = torch_npu.profiler
    durations = {}
    for name, call in variants.items():
        call(0)
        torch_npu.npu.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            settings = profiler._ExperimentalConfig(profiler_level=profiler.ProfilerLevel.Level1)
            with profiler.profile(
                activities=[profiler.ProfilerActivity.NPU], experimental_config=settings,
                on_trace_ready=profiler.tensorboard_trace_handler(folder),
            ):  # fmt: skip
                for number in range(calls):
                    call((number + 1) % copies)
                torch_npu.npu.synchronize()
            files = sorted(Path(folder).rglob("kernel_details.csv"))
            seconds = durations_per_call(files[0].read_text(encoding="utf-8", errors="replace"), calls) if files else []
            if any(seconds):
                durations[name] = summarise(seconds)
    return durations


def durations_per_call(kernel_details: str, calls: int) -> list[float]:
    """Compute seconds per call from the text of kernel_details.csv.

    Each call ran the same kernels, one call after the other. Where their number is no multiple of the calls, every call
    gets the mean.

    Example:
        >>> durations_per_call("Name,Duration(us)\\nA,2\\nB,1\\nA,4\\nB,1\\n", calls=2)
        [3e-06, 5e-06]
    """
    rows = [float(row["Duration(us)"]) for row in csv.DictReader(kernel_details.splitlines())]
    per_call = len(rows) // calls
    if per_call * calls != len(rows) or not rows:
        return [sum(rows) / calls / 1e6] * calls
    return [sum(rows[first : first + per_call]) / 1e6 for first in range(0, len(rows), per_call)]
