"""Timing: order of the rounds, copies, summaries, the profiler's file, refused times."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from toptheta_npu import TopThetaNotImplementedError
from toptheta_npu.npu.environment import EMULATOR_VARIABLE
from toptheta_npu.timing.clocks import (
    durations_per_call,
    interleaved_medians,
    make_timer,
    npu_task_durations,
    summarise,
)

CSV = """Device_id,Name,Type,Duration(us)
0,aclnnTopThetaIncrementalAttention,TopTheta,10.5
0,Cast,Cast,1.0
0,aclnnTopThetaIncrementalAttention,TopTheta,12.5
0,Cast,Cast,2.0
"""


def test_rounds_are_interleaved_and_turned_round() -> None:
    calls: list[tuple[str, int]] = []
    variants = {name: lambda copy, name=name: calls.append((name, copy)) for name in "abc"}
    interleaved_medians(variants, copies=2, rounds=2)
    warm_up, rounds = calls[:3], calls[3:]
    assert [name for name, _ in warm_up] == ["a", "b", "c"]
    assert [name for name, _ in rounds] == ["a", "b", "c", "c", "b", "a"]
    copies = [copy for _, copy in rounds]
    assert all(one != other for one, other in pairwise(copies))


def test_the_timer_decides_what_a_call_took() -> None:
    seconds = iter([3.0, 1.0, 2.0])
    reheated = []

    def timer(call: object, reheat: bool) -> float:
        reheated.append(reheat)
        return next(seconds)

    timings = interleaved_medians({"a": lambda copy: None}, 1, 3, timer, reheat=True)
    assert timings["a"].median == 2.0
    assert reheated == [True] * 3


def test_reheating_runs_the_call_once_more() -> None:
    calls: list[int] = []
    interleaved_medians({"a": calls.append}, copies=1, rounds=4, reheat=True)
    assert len(calls) == 1 + 2 * 4


def test_summary() -> None:
    assert summarise([float(number) for number in range(11)]) == (5.0, 1.0, 9.0)


def test_kernel_details() -> None:
    assert durations_per_call(CSV, calls=2) == pytest.approx([11.5e-6, 14.5e-6])
    # an additional kernel in one of the calls: the mean
    assert durations_per_call(CSV + "0,Extra,Extra,4.0\n", calls=2) == pytest.approx([15e-6] * 2)
    assert durations_per_call("Name,Duration(us)\n", calls=2) == [0.0, 0.0]


class _FakeProfile:
    """Stands in for torch_npu.profiler: each call ran one kernel of 5 microseconds."""

    ProfilerLevel = SimpleNamespace(Level1="level 1")
    ProfilerActivity = SimpleNamespace(NPU="npu")

    def __init__(self) -> None:
        self.kernels = 0
        self.folder = Path()

    def _ExperimentalConfig(self, profiler_level: str) -> str:
        return profiler_level

    def tensorboard_trace_handler(self, folder: str) -> str:
        return folder

    @contextmanager
    def profile(self, activities: list[str], experimental_config: str, on_trace_ready: str) -> Iterator[None]:
        self.kernels = 0
        yield
        place = Path(on_trace_ready) / "host_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        place.mkdir(parents=True)
        (place / "kernel_details.csv").write_text("Name,Duration(us)\n" + "Neg,5.0\n" * self.kernels)


def test_task_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = _FakeProfile()
    npu = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(profiler=profiler, npu=npu))
    copies: list[int] = []

    def launch(copy: int) -> None:
        copies.append(copy)
        profiler.kernels += 1

    durations = npu_task_durations({"kernel": launch, "no kernel": lambda copy: None}, copies=2, calls=4)
    assert list(durations) == ["kernel"]
    assert durations["kernel"].median == pytest.approx(5e-6)
    assert copies == [0, 1, 0, 1, 0]


def test_times_of_an_emulated_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATOR_VARIABLE, "/somewhere")
    with pytest.raises(TopThetaNotImplementedError, match=r"--device npu: .* got an emulated one; times are refused"):
        make_timer("npu")
    assert make_timer("cpu")(lambda: None, False) >= 0
