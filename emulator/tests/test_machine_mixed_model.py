"""Races between the cores of a mixed block against a plain model of happens-before, on random programs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from emulator.ascendc import Kernel, KernelRun, run_kernel

SOURCE = Path(__file__).parent / "kernels" / "machine_mixed_script.cpp"
GM_READ, GM_WRITE, SET, WAIT, BARRIER = range(5)
READS, WRITES = range(2)  # pipes: copies in; copies out, of a cube core FIX
CUBE, VECTORS = 0, (1, 2)
BYTES = 256
#: What is known to have finished: (core, pipe) -> number of instructions.
Known = Counter[tuple[int, int]]


@dataclass(frozen=True)
class Step:
    operation: int
    pipe: int = 0
    offset: int = 0
    bytes: int = 0
    flag: int = 0


@dataclass(frozen=True)
class Access:
    core: int
    line: int
    step: Step
    number: int  # on its pipe
    known: Known  # of other cores, when it was issued

    def overlaps(self, other: Access) -> bool:
        return self.step.offset < other.step.offset + other.step.bytes and (
            other.step.offset < self.step.offset + self.step.bytes
        )

    def writes(self) -> bool:
        return self.step.operation == GM_WRITE

    def comes_after(self, other: Access) -> bool:
        return self.known[other.core, other.step.pipe] >= other.number


@dataclass
class BlockModel:
    """Builds a program that can run to its end, and follows what every core knows meanwhile."""

    draw: random.Random
    programs: list[list[Step]] = field(default_factory=lambda: [[], [], []])
    issued: Known = field(default_factory=Known)
    own: dict[tuple[int, int], Known] = field(default_factory=dict)  # what (core, pipe) is ordered after in its core
    known: list[Known] = field(default_factory=lambda: [Known() for _ in range(3)])
    sets: dict[tuple[int, int, int], list[Known]] = field(default_factory=dict)  # sender, receiver, flag
    accesses: list[Access] = field(default_factory=list)

    def partners(self, core: int) -> tuple[int, ...]:
        return VECTORS if core == CUBE else (CUBE,)

    def add(self) -> None:
        core, flag, choice = self.draw.randrange(3), self.draw.randrange(2), self.draw.random()
        waiting = [self.sets.get((sender, core, flag), []) for sender in self.partners(core)]
        if choice < 0.2:
            self.set_flag(core, Step(SET, self.draw.randrange(2), flag=flag))
        elif choice < 0.45 and all(waiting):
            self.wait(core, Step(WAIT, flag=flag), [sets.pop(0) for sets in waiting])
        elif choice < 0.5:
            self.programs[core].append(Step(BARRIER))
            for pipe in (READS, WRITES):
                self.own[core, pipe] = Known({(core, other): self.issued[core, other] for other in (READS, WRITES)})
        else:
            self.access(core)

    def access(self, core: int) -> None:
        first, last = sorted(self.draw.sample(range(BYTES // 16 + 1), 2))
        operation = self.draw.choice((GM_READ, GM_WRITE))
        step = Step(operation, READS if operation == GM_READ else WRITES, 16 * first, 16 * (last - first))
        self.issued[core, step.pipe] += 1
        line = 1000 * core + len(self.programs[core])
        self.accesses.append(Access(core, line, step, self.issued[core, step.pipe], Known(self.known[core])))
        self.programs[core].append(step)

    def set_flag(self, core: int, step: Step) -> None:
        self.programs[core].append(step)
        published = self.known[core] | self.own.get((core, step.pipe), Known())
        published[core, step.pipe] = self.issued[core, step.pipe]
        for receiver in self.partners(core):
            self.sets.setdefault((core, receiver, step.flag), []).append(Known(published))

    def wait(self, core: int, step: Step, published: list[Known]) -> None:
        self.programs[core].append(step)
        for known in published:
            self.known[core] |= Known({key: number for key, number in known.items() if key[0] != core})
            for pipe in (READS, WRITES):
                ours = Known({key: number for key, number in known.items() if key[0] == core})
                self.own[core, pipe] = self.own.get((core, pipe), Known()) | ours

    def races(self) -> set[int]:
        """The lines at which they are reported: of the read, or of the write that begins later."""
        lines = set()
        ordered = sorted(self.accesses, key=lambda access: (access.step.offset, access.line))
        for first, second in combinations(ordered, 2):
            apart = first.core == second.core or not first.overlaps(second)
            if apart or not (first.writes() or second.writes()):
                continue
            if not first.comes_after(second) and not second.comes_after(first):
                lines.add(second.line if first.writes() else first.line)
        return lines


def run_programs(programs: list[list[Step]], host_threads: int) -> KernelRun:
    words = [len(program) for program in programs]
    for step in (step for program in programs for step in program):
        words += [step.operation, step.pipe, step.offset, step.bytes, step.flag]
    gm = np.zeros(1024, np.uint8)
    arguments = [("script", np.array(words, np.int32), "in"), ("gm", gm, "inout")]
    return run_kernel(Kernel(SOURCE), arguments, host_threads=host_threads)


def model_of(seed: int, length: int) -> BlockModel:
    model = BlockModel(random.Random(seed))
    for _ in range(length):
        model.add()
    return model


@pytest.mark.parametrize("seed", range(60))
def test_races_are_those_of_the_model(seed: int) -> None:
    model = model_of(seed, length=40 if seed % 2 else 90)
    run = run_programs(model.programs, host_threads=1 + seed % 4)
    assert run.completed
    assert {finding.line for finding in run.findings if finding.check == "CrossCore"} == model.races()


def test_programs_have_races_and_accesses_that_flags_order() -> None:
    models = [model_of(seed, length=40) for seed in range(20)]
    assert all(model.races() for model in models)
    ordered = [a.comes_after(b) for model in models for a in model.accesses for b in model.accesses if a.core != b.core]
    assert sum(ordered) > 50
