"""Times of some shapes on a device, each beside the run on the host model that is to explain it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..benchmark.clocks import Timing, interleaved_medians, make_timer, npu_task_durations
from ..benchmark.contenders import list_contenders
from ..benchmark.environment import cache_bytes, device_name, free_bytes
from ..benchmark.inputs import check_memory, count_copies, make_inputs
from ..benchmark.measure import Row, check_answer
from ..benchmark.model import ModelRun, run_model
from ..benchmark.shapes import Shape, parse_shape
from ..benchmark.templates import core_counts

ROUNDS = 50
_HOST_CALLS = 100
#: Little work for the launch, much for the rate of the memory, many and narrow rows for scattered reads, heads that
#: share cores for SyncAll, groups for the launch with cube cores and its flags.
SHAPES: tuple[Shape, ...] = tuple(
    parse_shape(text)
    for text in (
        "heads=48,n=256,k=16", "heads=48,n=2048,k=128", "heads=48,n=2048,k=128,block_size=128",
        "heads=48,n=2048,k=512", "heads=48,n=8192,k=512", "heads=48,n=2048,k=128,head_dim=64",
        "heads=32,n=2048,k=128", "heads=32,n=8192,k=512", "heads=8,n=2048,k=128", "heads=8,n=32768,k=2048",
        "heads=4,n=1024,k=64", "heads=16/4,n=1024,k=64", "heads=32/8,n=2048,k=128", "heads=32/8,n=8192,k=512",
        "heads=32/8,n=32768,k=2048", "heads=64/8,n=8192,k=512",
    )
)  # fmt: skip
_ROLES = ("sparse", "own dense")


@dataclass(frozen=True)
class Measured:
    """One call on the device, with cold caches.

    Attributes:
        role: "sparse", or "own dense" for a threshold of -inf.
        call: seconds from the device's clock.
        task: seconds that its kernel was on the device, from the profiler; None where that saw none.
        host: seconds that a call takes the host.
        model: the same call on the host model.
    """

    shape: Shape
    role: str
    call: Timing
    task: Timing | None
    host: float
    model: ModelRun

    @property
    def microseconds(self) -> float:
        """What is to be explained: the task if it was seen, else the call."""
        return (self.task or self.call).median * 1e6


@torch.no_grad()
def measure(
    shapes: Sequence[Shape], device: str, rounds: int = ROUNDS, progress: Callable[[Shape], None] = lambda shape: None
) -> list[Measured]:
    """Time both thresholds of every shape in interleaved rounds, once the answers are right.

    Raises:
        TopThetaNotImplementedError: the device is emulated.
        TopThetaValueError: a shape does not fit into the device's memory.
        TopThetaWrongResultError: an answer is wrong.
    """
    timer = make_timer(device)
    cores = core_counts(device_name(device))
    measured = []
    for shape in shapes:
        progress(shape)
        copies = count_copies(shape, cache_bytes(device), cold=True)
        check_memory(shape, copies, free_bytes(device))
        inputs = make_inputs(shape, device, copies)
        calls: dict[str, Any] = {}
        for contender in list_contenders(device):
            if contender.role in _ROLES:
                calls[contender.role] = check_answer(contender, inputs, Row(contender.name, contender.role))
        timings = interleaved_medians(calls, copies, rounds, timer)
        tasks = npu_task_durations(calls, copies, rounds)
        for role, call in calls.items():
            modelled = run_model(inputs, dense=role == "own dense", cores=cores)
            measured.append(Measured(shape, role, timings[role], tasks.get(role), _on_host(call, device), modelled))
    return measured


def _on_host(call: Callable[[int], object], device: str) -> float:
    """Seconds in which a call comes back, while the device works on those before it."""
    accelerator: Any = getattr(torch, device)
    accelerator.synchronize()
    started = time.perf_counter()
    for _ in range(_HOST_CALLS):
        call(0)
    seconds = (time.perf_counter() - started) / _HOST_CALLS
    accelerator.synchronize()
    return seconds


def modelled(calls: Sequence[ModelRun], constants: Mapping[str, float]) -> list[float]:
    """Microseconds of all calls with these constants."""
    return [call.microseconds("cold", constants) for call in calls]


def as_json(measured: Sequence[Measured], explained: Sequence[float]) -> list[dict[str, Any]]:
    """Plain values in microseconds, one entry for each call."""
    return [
        {
            "shape": asdict(one.shape), "threshold": "-inf" if one.role == "own dense" else "keeps k",
            "call": _microseconds(one.call), "task": None if one.task is None else _microseconds(one.task),
            "host": one.host * 1e6, "modelled": model,
        }
        for one, model in zip(measured, explained, strict=True)
    ]  # fmt: skip


def _microseconds(timing: Timing) -> dict[str, float]:
    return {name: seconds * 1e6 for name, seconds in timing._asdict().items()}
