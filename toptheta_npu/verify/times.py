"""Times of some shapes on a device, each beside the run on the host model that is to explain it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..timing.clocks import Timing, interleaved_medians, make_timer, npu_task_durations
from ..timing.contenders import Call, Role, list_contenders
from ..timing.environment import cache_bytes, core_counts, device_name, free_bytes
from ..timing.host_model import ModelledRun, run_on_host_model
from ..timing.inputs import Inputs, check_memory, count_copies, make_inputs
from ..timing.measure import Row, TopThetaWrongResultError, check_answer
from ..timing.shapes import Shape, parse_shape

ROUNDS = 50
_HOST_CALLS = 100
#: First those whose time hangs on GatherMask, by a tenth in the longer one: eight heads list the keys of narrow K rows.
#: Then little work for the launch, much for the rate of the memory, many and narrow rows for scattered reads, heads
#: that share cores for SyncAll, groups for the launch with cube cores and its flags, and several query tokens.
SHAPES: tuple[Shape, ...] = tuple(
    parse_shape(text)
    for text in (
        "heads=64/8,n=8192,k=64,head_dim=16", "heads=64/8,n=32768,k=64,head_dim=16",
        "heads=48,n=256,k=16", "heads=48,n=2048,k=128", "heads=48,n=2048,k=128,block_size=128",
        "heads=48,n=2048,k=512", "heads=48,n=8192,k=512", "heads=48,n=2048,k=128,head_dim=64",
        "heads=32,n=2048,k=128", "heads=32,n=8192,k=512", "heads=8,n=2048,k=128", "heads=8,n=32768,k=2048",
        "heads=4,n=1024,k=64", "heads=16/4,n=1024,k=64", "heads=32/8,n=2048,k=128", "heads=32/8,n=8192,k=512",
        "heads=32/8,n=32768,k=2048", "heads=64/8,n=8192,k=512", "heads=48,n=2048,k=128,query_tokens=4",
        "heads=32/8,n=8192,k=512,query_tokens=4",
    )
)  # fmt: skip
_ROLES: dict[str, Role] = {"keeps k": "sparse", "-inf": "own dense"}
#: What every shape is timed with: its thresholds, -inf, and sequences without keys, which leave nothing but the launch.
#: Without the last, nothing would tell a launch with cube cores from the one flag that its first scores wait for.
VARIANTS = (*_ROLES, "no keys")


@dataclass(frozen=True)
class Measured:
    """One call on the device, with cold caches.

    Attributes:
        variant: of `VARIANTS`.
        call: seconds from the device's clock.
        task: seconds that its kernel was on the device, from the profiler; None where that saw none.
        host: seconds that a call takes the host.
        model: the same call on the host model.
    """

    shape: Shape
    variant: str
    call: Timing
    task: Timing | None
    host: float
    model: ModelledRun

    @property
    def microseconds(self) -> float:
        """What is to be explained: the task if it was seen, else the call."""
        return (self.task or self.call).median * 1e6


@torch.no_grad()
def measure(
    shapes: Sequence[Shape], device: str, rounds: int = ROUNDS, progress: Callable[[Shape], None] = lambda shape: None
) -> list[Measured]:
    """Time the variants of every shape in interleaved rounds, once their answers are right.

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
        calls = checked_calls(inputs, device)
        timings = interleaved_medians(calls, copies, rounds, timer)
        tasks = npu_task_durations(calls, copies, rounds)
        for variant, call in calls.items():
            model = model_of(inputs, variant, cores)
            measured.append(
                Measured(shape, variant, timings[variant], tasks.get(variant), _on_host(call, device), model)
            )
    return measured


def checked_calls(inputs: Inputs, device: str) -> dict[str, Call]:
    """Make the call of every variant, and check its answer.

    Raises:
        TopThetaWrongResultError: an answer is wrong.
    """
    own = {contender.role: contender for contender in list_contenders(device)}
    calls = {}
    for variant, role in _ROLES.items():
        call = check_answer(own[role], inputs, Row(own[role].name, role))
        assert call is not None  # None is for code of others
        calls[variant] = call
    calls["no keys"] = own["sparse"].make(_without_keys(inputs))
    if calls["no keys"](0).any():
        raise TopThetaWrongResultError(
            f"sequences of length 0: expected an output of 0, got another for {inputs.shape}"
        )
    return calls


def model_of(inputs: Inputs, variant: str, cores: tuple[int, int]) -> ModelledRun:
    """Run the same call on the host model."""
    chosen = _without_keys(inputs) if variant == "no keys" else inputs
    return run_on_host_model(chosen, dense=variant == "-inf", cores=cores)


def _without_keys(inputs: Inputs) -> Inputs:
    return replace(inputs, lengths=torch.zeros(inputs.shape.batch, dtype=torch.int64, device=inputs.query.device))


def _on_host(call: Callable[[int], object], device: str) -> float:
    """Measure the seconds in which a call comes back, while the device works on those before it."""
    accelerator: Any = getattr(torch, device)
    accelerator.synchronize()
    started = time.perf_counter()
    for _ in range(_HOST_CALLS):
        call(0)
    seconds = (time.perf_counter() - started) / _HOST_CALLS
    accelerator.synchronize()
    return seconds


def modelled(calls: Sequence[ModelledRun], constants: Mapping[str, float]) -> list[float]:
    """Compute the microseconds of all calls with these constants."""
    return [call.microseconds("cold", constants) for call in calls]


def as_json(measured: Sequence[Measured], explained: Sequence[float]) -> list[dict[str, Any]]:
    """Convert the times to plain values in microseconds, one entry for each call."""
    return [
        {
            "shape": asdict(one.shape), "variant": one.variant,
            "call": _microseconds(one.call), "task": None if one.task is None else _microseconds(one.task),
            "host": one.host * 1e6, "modelled": model,
        }
        for one, model in zip(measured, explained, strict=True)
    ]  # fmt: skip


def _microseconds(timing: Timing) -> dict[str, float]:
    return {name: seconds * 1e6 for name, seconds in timing._asdict().items()}
