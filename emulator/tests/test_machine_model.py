"""The machine against plain models of it, on random programs: one byte, one clock and one list at a time."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from emulator.ascendc import Kernel, KernelRun, run_kernel

SOURCE = Path(__file__).parent / "kernels" / "machine_script.cpp"
UB_READ, UB_WRITE, GM_READ, GM_WRITE, SET, WAIT, BARRIER = range(7)
S, V, MTE2, MTE3 = range(4)
ACCESSES = {V: [UB_READ, UB_WRITE], S: [UB_READ, UB_WRITE], MTE2: [UB_WRITE, GM_READ], MTE3: [UB_READ, GM_WRITE]}
BYTES = 256


@dataclass(frozen=True)
class Step:
    operation: int
    pipe: int = 0
    other: int = 0
    offset: int = 0
    bytes: int = 0
    extra: int = 0


def random_program(seed: int, length: int = 120) -> list[Step]:
    """Accesses of a small memory with flags and barriers strewn in; every flag is waited for."""
    draw = random.Random(seed)
    steps: list[Step] = []
    pending: list[Step] = []
    while len(steps) < length:
        choice = draw.random()
        if choice < 0.2:
            flag = Step(SET, *draw.sample(range(4), 2), extra=draw.randrange(6))
            if all((flag.pipe, flag.other, flag.extra) != (set_.pipe, set_.other, set_.extra) for set_ in pending):
                steps.append(flag)
                pending.append(flag)
        elif choice < 0.4 and pending:
            flag = pending.pop(draw.randrange(len(pending)))
            steps.append(Step(WAIT, flag.pipe, flag.other, extra=flag.extra))
        elif choice < 0.45:
            steps.append(Step(BARRIER, draw.randrange(1, 4), extra=int(draw.random() < 0.2)))
        else:
            pipe = draw.randrange(4)
            steps.append(random_access(draw, pipe, draw.choice(ACCESSES[pipe])))
    return steps + [Step(WAIT, flag.pipe, flag.other, extra=flag.extra) for flag in pending]


def random_access(draw: random.Random, pipe: int, operation: int) -> Step:
    # the machine knows the readers of the UB by blocks of 32 bytes, everything else by bytes
    grain = 32 if operation == UB_READ else 1
    first, last = sorted(draw.sample(range(BYTES // grain + 1), 2))
    return Step(operation, pipe, 0, first * grain, (last - first) * grain, draw.randrange(1, 100))


def run_program(steps: list[Step]) -> KernelRun:
    words = [len(steps)]
    for step in steps:
        words += [step.operation, step.pipe, step.other, step.offset, step.bytes, step.extra]
    gm = np.zeros(1024, np.uint8)
    return run_kernel(Kernel(SOURCE), [("script", np.array(words, np.int32), "in"), ("gm", gm, "inout")], suppress="")


# ---- order of the pipes ----------------------------------------------------------------------------------------------


@dataclass
class OrderModel:
    """Happens-before, byte by byte."""

    issued: list[int] = field(default_factory=lambda: [0] * 4)
    known: list[list[int]] = field(default_factory=lambda: [[0] * 4 for _ in range(4)])
    flags: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)
    writer: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    readers: dict[tuple[str, int], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    found: set[tuple[str, int]] = field(default_factory=set)

    def step(self, number: int, step: Step) -> None:
        if step.operation == SET:
            snapshot = list(self.known[step.pipe])
            snapshot[step.pipe] = self.issued[step.pipe]
            self.flags[step.pipe, step.other, step.extra] = snapshot
        elif step.operation == WAIT:
            snapshot = self.flags.pop((step.pipe, step.other, step.extra))
            for pipe in range(4) if step.other == S else [step.other]:
                self.known[pipe] = [max(pair) for pair in zip(self.known[pipe], snapshot, strict=True)]
        elif step.operation == BARRIER:
            if step.extra == 1:
                self.known = [list(self.issued) for _ in range(4)]
            else:
                self.known[step.pipe][step.pipe] = self.issued[step.pipe]
        else:
            self.access(number, step)

    def access(self, number: int, step: Step) -> None:
        pipe = step.pipe
        if pipe == S:
            self.known[S][S] = self.issued[S]
        self.issued[pipe] += 1
        memory = "ub" if step.operation in (UB_READ, UB_WRITE) else "gm"
        for offset in range(step.offset, step.offset + step.bytes):
            byte = (memory, offset)
            write = step.operation in (UB_WRITE, GM_WRITE)
            if byte in self.writer and self.writer[byte][1] > self.known[pipe][self.writer[byte][0]]:
                self.found.add(("WriteAfterWrite" if write else "ReadAfterWrite", number))
            if write:
                for reader, seq in self.readers[byte].items():
                    if reader != pipe and seq > self.known[pipe][reader]:
                        self.found.add(("WriteAfterRead", number))
                self.writer[byte] = (pipe, self.issued[pipe])
                if memory == "ub":
                    self.readers[byte].clear()
            else:
                self.readers[byte][pipe] = self.issued[pipe]


@pytest.mark.parametrize("seed", range(60))
def test_races_are_those_of_the_model(seed: int) -> None:
    steps = random_program(seed)
    model = OrderModel()
    for number, step in enumerate(steps):
        model.step(number, step)
    run = run_program(steps)
    races = {(f.check, f.line) for f in run.findings if f.check != "Uninitialised"}
    assert races == model.found
    assert len(model.found) > 5


@pytest.mark.parametrize("seed", range(10))
def test_uninitialised_reads_are_those_of_a_set_of_written_bytes(seed: int) -> None:
    steps = random_program(seed)
    written: set[int] = set()
    expected: set[int] = set()
    for number, step in enumerate(steps):
        touched = set(range(step.offset, step.offset + step.bytes))
        if step.operation == UB_READ and not touched <= written:
            expected.add(number)
        if step.operation == UB_WRITE:
            written |= touched
    run = run_program(steps)
    assert {finding.line for finding in run.findings if finding.check == "Uninitialised"} == expected
    assert expected


# ---- time ------------------------------------------------------------------------------------------------------------

COST = {
    "vector_head": 20.0,
    "scalar_issue": 3.0,
    "scalar_ub": 10.0,
    "dma_command": 20.0,
    "read_latency_cold": 100.0,
    "write_latency": 50.0,
    "rate_cold": 2.0,
    "shared_cold": 1e9,
    "queue_depth": 4.0,
}


@dataclass
class TimeModel:
    """One core with a memory of its own: every time follows from the operations before it in the program."""

    scalar: float = 0.0
    free: list[float] = field(default_factory=lambda: [0.0] * 4)
    done: list[float] = field(default_factory=lambda: [0.0] * 4)
    left: list[list[float]] = field(default_factory=lambda: [[] for _ in range(4)])
    flags: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def issue(self, pipe: int) -> float:
        depth = int(COST["queue_depth"])
        if len(self.left[pipe]) >= depth:
            self.scalar = max(self.scalar, self.left[pipe][-depth])
        self.scalar += COST["scalar_issue"]
        return max(self.scalar, self.free[pipe])

    def leave(self, pipe: int, time: float, free: float) -> None:
        self.left[pipe].append(time)
        self.free[pipe] = free

    def step(self, step: Step) -> None:
        if step.operation == SET:
            self.set_flag(step)
        elif step.operation == WAIT:
            self.wait_flag(step)
        elif step.operation == BARRIER and step.extra == 1:
            self.scalar = max(self.scalar, *self.done) + COST["scalar_issue"]
        elif step.operation == BARRIER:
            time = max(self.issue(step.pipe), self.done[step.pipe])
            self.leave(step.pipe, time, time)
        elif step.pipe == S:
            self.scalar += COST["scalar_ub"]
        else:
            self.instruction(step)

    def set_flag(self, step: Step) -> None:
        key = (step.pipe, step.other, step.extra)
        if step.pipe == S:
            self.scalar += COST["scalar_issue"]
            self.flags[key] = self.scalar
            return
        time = self.issue(step.pipe)
        self.flags[key] = max(time, self.done[step.pipe])
        self.leave(step.pipe, time, time)

    def wait_flag(self, step: Step) -> None:
        flag = self.flags.pop((step.pipe, step.other, step.extra))
        if step.other == S:
            self.scalar = max(self.scalar + COST["scalar_issue"], flag)
            return
        time = max(self.issue(step.other), flag)
        self.leave(step.other, time, time)

    def instruction(self, step: Step) -> None:
        begin = self.issue(step.pipe)
        if step.pipe == V:
            end = begin + COST["vector_head"] + step.extra
            done = end
        else:
            end = begin + max(COST["dma_command"], step.extra / COST["rate_cold"])
            done = end + COST["read_latency_cold" if step.pipe == MTE2 else "write_latency"]
        self.leave(step.pipe, begin, end)
        self.done[step.pipe] = max(self.done[step.pipe], done)


@pytest.mark.parametrize("seed", range(60))
def test_times_are_those_of_the_model(seed: int) -> None:
    steps = random_program(seed)
    model = TimeModel()
    for step in steps:
        model.step(step)
    timeline = run_program(steps).timeline(**COST)
    assert timeline.cycles == pytest.approx(max(model.scalar, *model.done))
