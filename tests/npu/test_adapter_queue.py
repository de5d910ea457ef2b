"""Streams, the task queue, memory and processes; each scenario in a process of its own, since what it sets is read
at the start.

Run as a program, this file is one scenario after the other: ``python test_adapter_queue.py many_calls,streams``.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import toptheta_npu
from emulator.acl.settings import current_settings, with_settings
from tests.npu.acl_calls import Gate, live_descriptors, live_executors
from tests.tiers import full, only

_ROOT = Path(__file__).parents[2]
_QUEUES = ("0", "1", "2")


def _inputs(seed: int, rows: int = 300, device: str = "npu") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"query": (2, 4, 1, 64), "key": (2, 2, rows, 64), "value": (2, 2, rows, 64)}
    tensors = {name: torch.randn(shape, generator=generator).half() for name, shape in shapes.items()}
    tensors["threshold"] = torch.full((4,), 1.0)
    tensors["actual_seq_lengths"] = torch.tensor([rows, rows // 2], dtype=torch.int32)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _expect(result: torch.Tensor, inputs: dict[str, torch.Tensor], what: object) -> None:
    expected = toptheta_npu.incremental_attention(**{name: tensor.cpu() for name, tensor in inputs.items()})
    difference = float((result.cpu().float() - expected.float()).abs().max())
    assert difference < 2e-3, f"{what}: off by {difference}"


# The scenarios.


def many_calls() -> None:
    """1000 calls back to back whose inputs are freed at once; every result is looked at, and nothing is left over."""
    inputs = [_inputs(seed, rows=40) for seed in range(10)]
    results = [
        toptheta_npu.incremental_attention(**{name: t.clone() for name, t in inputs[call % 10].items()})
        for call in range(1000)
    ]
    first = [result.cpu() for result in results[:10]]
    for call, result in enumerate(results):
        if call < 10:
            _expect(result, inputs[call], call)
        assert torch.equal(result.cpu(), first[call % 10]), f"{call}: off by something from an equal call"
    assert (live_executors(), live_descriptors()) == (0, 0)


def copied_inputs() -> None:
    """Inputs that are made contiguous: no copy takes the memory of another one of the same call."""
    inputs = _inputs(0)
    strided = dict(inputs)
    for name in ("query", "threshold", "actual_seq_lengths"):
        wide = torch.stack([inputs[name], torch.full_like(inputs[name], 7)], dim=-1)
        strided[name] = wide[..., 0]
        assert not strided[name].is_contiguous()
    for _ in range(3):
        _expect(toptheta_npu.incremental_attention(**strided), inputs, "copied inputs")


@contextmanager
def _held() -> Iterator[None]:
    """The current stream does nothing before the end, where emulated streams have threads of their own."""
    if current_settings().get("asynchronous") != "1":
        yield
        return
    gate = Gate()
    gate.wait_on_current_stream()
    try:
        yield
        time.sleep(0.02)  # what does not wait has time to run
    finally:
        gate.open()


def streams(wait: bool = True) -> None:
    """A cache that is written on one stream and attended to on another that waits for it; and back."""
    writer, reader = torch.npu.Stream(), torch.npu.Stream()
    # the first call is made on a third stream, which waits for neither
    _expect(toptheta_npu.incremental_attention(**_inputs(0)), _inputs(0), "first")
    for seed in range(5):
        inputs = _inputs(seed)
        key, nines = torch.full_like(inputs["key"], 9.0), torch.full_like(inputs["key"], 9.0)
        torch.npu.synchronize()
        with torch.npu.stream(writer), _held():
            key.copy_(inputs["key"])
            written = writer.record_event()
            with torch.npu.stream(reader):
                if wait:
                    reader.wait_event(written)
                result = toptheta_npu.incremental_attention(**inputs | {"key": key})
        reader.synchronize()
        _expect(result, inputs, seed)
        with torch.npu.stream(reader), _held():
            result = toptheta_npu.incremental_attention(**inputs | {"key": key})
            read = reader.record_event()
            with torch.npu.stream(writer):
                if wait:
                    writer.wait_event(read)
                key.copy_(nines)
        torch.npu.synchronize()
        _expect(result, inputs, seed)


def streams_without_waits() -> None:
    """The control: fails."""
    streams(wait=False)


def two_devices() -> None:
    """The current device is not that of the tensors."""
    torch.npu.set_device(0)
    for seed in range(3):
        inputs = _inputs(seed, device="npu:1")
        result = toptheta_npu.incremental_attention(**inputs)
        assert result.device == torch.device("npu:1")
        assert torch.npu.current_device() == 0
        _expect(result, inputs, seed)


def out_of_memory() -> None:
    """No memory for the workspace is torch's error, and the next call with memory works."""
    inputs = _inputs(0)
    _expect(toptheta_npu.incremental_attention(**inputs), inputs, "before")
    torch.npu.synchronize()
    torch.npu.empty_cache()
    ballast = []
    try:
        while True:
            ballast.append(torch.empty(4 << 20, dtype=torch.uint8, device="npu"))
    except torch.OutOfMemoryError:
        pass
    for _ in range(3):
        try:
            toptheta_npu.incremental_attention(**inputs)
        except torch.OutOfMemoryError:
            continue
        raise AssertionError("expected no memory for the workspace")
    ballast.clear()
    torch.npu.empty_cache()
    assert live_executors() == 0, "a planned launch without memory is given up"
    _expect(toptheta_npu.incremental_attention(**inputs), inputs, "after")


def threads() -> None:
    """The first calls of several threads, one of which loads the adapter, each on a stream of its own."""
    from concurrent.futures import ThreadPoolExecutor

    def work(seed: int) -> None:
        inputs = _inputs(seed)
        torch.npu.synchronize()
        with torch.npu.stream(torch.npu.Stream()):
            for _ in range(10):
                result = toptheta_npu.incremental_attention(**inputs)
            torch.npu.current_stream().synchronize()
        _expect(result, inputs, seed)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# The tests.


def run(scenario: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.npu.test_adapter_queue", scenario]
    given = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(command, cwd=_ROOT, env=given, capture_output=True, text=True, check=False, timeout=120)


def assert_passes(scenario: str, **variables: str) -> None:
    done = run(scenario, **variables)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("queue", "asynchronous"), only({("1", "1")}, itertools.product(_QUEUES, ["0", "1"])))
def test_order(queue: str, asynchronous: str) -> None:
    # fresh memory is NaN: what is read too early or not written shows
    variables = {"TASK_QUEUE_ENABLE": queue, **with_settings(asynchronous=asynchronous, fill="0xFF")}
    assert_passes("many_calls,copied_inputs,streams", **variables)


def test_a_missing_wait_is_seen() -> None:
    done = run("streams_without_waits", **with_settings(asynchronous=1))
    assert done.returncode != 0
    assert "AssertionError: 0: off by " in done.stderr


@full
def test_threads() -> None:
    assert_passes("threads", **with_settings(asynchronous=1))


@full
def test_two_devices() -> None:
    assert_passes("two_devices", **with_settings(devices=2))


@full
def test_out_of_memory() -> None:
    assert_passes("out_of_memory", **with_settings(memory_mb=128))


if __name__ == "__main__":
    import torch_npu  # noqa: F401 (registers torch.npu)

    try:
        for name in sys.argv[1].split(","):
            globals()[name]()
    except BaseException:
        traceback.print_exc()
        # after an error in its queue, torch_npu sometimes waits for ever when Python ends
        time.sleep(0.5)  # but may still have to print the error
        os._exit(1)
