"""One comparison: make the inputs, check every answer, time cold and hot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import TopThetaError, TopThetaValueError
from .clocks import Timing, interleaved_medians, is_emulated, make_timer, npu_task_durations
from .contenders import ANSWERS, COPY, Call, Contender, Role, list_contenders
from .environment import cache_bytes, free_bytes
from .inputs import Inputs, Traffic, check_memory, count_copies, make_inputs
from .shapes import Shape, check_for_device

CACHES = ("cold", "hot")
#: Everything that reads all of K and V.
DENSE: tuple[Role, ...] = ("dense", "own dense")
#: Everything that reads an int8 cache.
INT8: tuple[Role, ...] = ("own dense int8", "sparse int8")


class TopThetaWrongResultError(TopThetaError, ArithmeticError):
    """A contender gave a wrong answer, so that its time would mean nothing."""


@dataclass
class Row:
    """A contender on a shape.

    Attributes:
        name, role: name and role of the contender.
        missing: why it did not run, or None.
        error: error relative to the float32 answer, in the Euclidean norm; None without an answer.
        calls: seconds per call, "cold" and "hot", from the device's clock.
        tasks: the same from torch_npu's profiler, kernels only; empty elsewhere.
    """

    name: str
    role: str
    missing: str | None = None
    error: float | None = None
    calls: dict[str, Timing] = field(default_factory=dict)
    tasks: dict[str, Timing] = field(default_factory=dict)

    def over(self, other: Row, cache: str) -> float | None:
        """Divide another row's time by this row's: the tasks' time if both have one, else the device clock's."""
        for mine, its in ((self.tasks, other.tasks), (self.calls, other.calls)):
            if cache in mine and cache in its:
                return its[cache].median / mine[cache].median
        return None


@dataclass
class ShapeResult:
    """All contenders on a shape, or why it was skipped.

    Attributes:
        kept: elements kept per query row, mean.
        copies: layers that cold calls rotate through.
    """

    shape: Shape
    skipped: str | None = None
    kept: float = 0.0
    copies: int = 0
    traffic: Traffic | None = None
    rows: list[Row] = field(default_factory=list)

    def fastest(self, cache: str, *roles: Role) -> Row | None:
        """Find the fastest row of some roles."""
        rows = [row for row in self.rows if row.role in roles and cache in row.calls]
        complete = all(cache in row.tasks for row in rows)
        return min(rows, key=lambda row: (row.tasks if complete else row.calls)[cache].median, default=None)

    def baseline(self, cache: str) -> Row | None:
        """Find the fastest dense row, Top-θ at -inf among them."""
        return self.fastest(cache, *DENSE)

    def gain(self, role: Role, cache: str, *over: Role) -> float | None:
        """Compute the speed-up of ``role`` over the fastest row of ``over``, or over the baseline if that is empty."""
        row, base = self.fastest(cache, role), self.fastest(cache, *(over or DENSE))
        return row.over(base, cache) if row and base else None

    def limit(self, cache: str) -> float | None:
        """Compute the gain over the baseline if K and the needed V rows were read at the rate of the floor."""
        gain, floor = self.gain("floor", cache), self.fastest(cache, "floor")
        if gain is None or floor is None or self.traffic is None:
            return None
        return gain * self.bytes_moved(floor) / (self.traffic.key_bytes + self.traffic.value_bytes)

    def bound_share(self, cache: str) -> float | None:
        """Divide the gain of Top-θ over itself at -inf by the byte bound."""
        gain = self.gain("sparse", cache, "own dense")
        return gain / self.traffic.bound if gain and self.traffic else None

    def bytes_moved(self, row: Row) -> int:
        """Count the bytes a row must move: K, and all V rows or those needed. The floor moves all of K; COPY, twice."""
        if self.traffic is None:
            return 0
        if row.role == "floor":
            return self.shape.layer_bytes // (1 if row.name == COPY else 2)
        key_bytes = self.traffic.key_bytes
        moved = key_bytes + (key_bytes if row.role in (*DENSE, "own dense int8") else self.traffic.value_bytes)
        return moved // (self.shape.torch_dtype.itemsize if row.role in INT8 else 1)

    def roofline_share(self, row: Row | None, cache: str) -> float | None:
        """Divide the rate at which a row moves its bytes by the rate of the floor."""
        floor = self.fastest(cache, "floor")
        gain = row.over(floor, cache) if row and floor else None
        return gain * self.bytes_moved(row) / self.bytes_moved(floor) if row and floor and gain else None

    def floor_rate(self, cache: str) -> float | None:
        """Compute the bytes per second that the floor moves."""
        floor = self.fastest(cache, "floor")
        return self.bytes_moved(floor) / (floor.tasks or floor.calls)[cache].median if floor else None


def compare(
    shapes: Sequence[Shape],
    device: str,
    *,
    rounds: int,
    caches: Sequence[str] = CACHES,
    skip_large: bool = False,
    finished: Callable[[ShapeResult], None] = lambda result: None,
) -> list[ShapeResult]:
    """Run all shapes; ``finished`` gets each result as soon as it is ready.

    Args:
        skip_large: whether to list a shape that does not fit as skipped. Otherwise it is an error before anything is
            allocated.

    Raises:
        TopThetaValueError: a shape that the device does not take, or that does not fit.
        TopThetaWrongResultError: a contender's answer is wrong.
    """
    cache = cache_bytes(device)
    copies = [count_copies(shape, cache, "cold" in caches) for shape in shapes]
    for shape, count in zip(shapes, copies, strict=True):
        check_for_device(shape, device)
        if not skip_large:
            check_memory(shape, count, free_bytes(device))
    results = []
    for shape, count in zip(shapes, copies, strict=True):
        try:
            check_memory(shape, count, free_bytes(device))
        except TopThetaValueError as error:
            result = ShapeResult(shape, skipped=str(error))
        else:
            result = compare_one(shape, device, copies=count, rounds=rounds, caches=caches)
        results.append(result)
        finished(result)
        if device in ("cuda", "npu"):
            getattr(torch, device).empty_cache()
    return results


@torch.no_grad()
def compare_one(shape: Shape, device: str, *, copies: int, rounds: int, caches: Sequence[str] = CACHES) -> ShapeResult:
    """Compare all contenders on one shape. An emulated device skips only the timing."""
    inputs = make_inputs(shape, device, copies)
    result = ShapeResult(shape, None, float(inputs.kept.float().mean()), copies, inputs.traffic)
    calls: dict[str, Call] = {}
    for contender in list_contenders(device, int8=bool(shape.cache)):
        row = Row(contender.name, contender.role, contender.reason(shape))
        result.rows.append(row)
        if row.missing is None:
            call = check_answer(contender, inputs, row)
            if call is not None:
                calls[contender.name] = call
    if is_emulated(device):
        return result
    timer = make_timer(device)
    for cache in caches:
        used = copies if cache == "cold" else 1
        timings = interleaved_medians(calls, used, rounds, timer, reheat=cache == "hot")
        tasks = npu_task_durations(calls, used, rounds) if device == "npu" else {}
        for row in result.rows:
            if row.name in timings:
                row.calls[cache] = timings[row.name]
            if row.name in tasks:
                row.tasks[cache] = tasks[row.name]
    return result


def check_answer(contender: Contender, inputs: Inputs, row: Row) -> Call | None:
    """Make the call to time and check its answer. If it cannot run, give None and put the reason in ``row``.

    Raises:
        TopThetaWrongResultError: the answer is wrong.
    """
    try:
        call = contender.make(inputs)
        out = call(0)
        row.error = relative_error(out, inputs.answers[ANSWERS[row.role]]) if row.role in ANSWERS else None
    except (RuntimeError, NotImplementedError, AttributeError, ImportError) as error:
        if not contender.foreign and not isinstance(error, torch.OutOfMemoryError):
            raise
        row.missing = f"not available: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        return None
    allowed = contender.tolerance(inputs.shape)
    if row.error is not None and not row.error <= allowed:
        raise TopThetaWrongResultError(
            f"{contender.name}: expected the float32 answer within {allowed:g}, got an error of {row.error:.3g} "
            f"(relative, Euclidean norm) for {inputs.shape}; a wrong answer has no time"
        )
    return call


def relative_error(out: Tensor, answer: Tensor) -> float:
    """Divide the Euclidean norm of the difference by the norm of the answer."""
    return float((out.float() - answer).norm() / answer.norm())
