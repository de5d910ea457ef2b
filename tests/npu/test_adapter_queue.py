"""Streams, the task queue, memory and processes; each scenario in a process of its own, since what it sets is read
at the start. And the proof that these scenarios see a fault: the adapter is compiled with one.

Run as a program, this file is one scenario after the other: ``python test_adapter_queue.py many_calls,streams``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# the tables of the tests, when this file is a program
sys.path.append(str(Path(__file__).resolve().parents[1]))

import toptheta_npu
from toptheta_npu.npu import build, environment

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
    """1000 calls back to back whose inputs are freed at once; every result is looked at."""
    inputs = [_inputs(seed, rows=40) for seed in range(10)]
    results = [
        toptheta_npu.incremental_attention(**{name: t.clone() for name, t in inputs[call % 10].items()})
        for call in range(1000)
    ]
    first = [result.cpu() for result in results[:10]]
    for call, result in enumerate(results):
        if call < 10:
            _expect(result, inputs[call], call)
        assert torch.equal(result.cpu(), first[call % 10]), call


def streams() -> None:
    """A cache that is written on one stream and attended to on another that waits for it; and back."""
    writer, reader = torch.npu.Stream(), torch.npu.Stream()
    # the first call is made on a third stream, which waits for neither
    _expect(toptheta_npu.incremental_attention(**_inputs(0)), _inputs(0), "first")
    for seed in range(20):
        inputs = _inputs(seed)
        weight = torch.randn(512, 512).npu()
        key = torch.full_like(inputs["key"], 9.0)
        torch.npu.synchronize()
        with torch.npu.stream(writer):
            for _ in range(8):
                weight = (weight @ weight).clamp(-1, 1)  # keeps the stream busy ahead of the write
            key.copy_(inputs["key"])
            written = writer.record_event()
        with torch.npu.stream(reader):
            reader.wait_event(written)
            result = toptheta_npu.incremental_attention(**inputs | {"key": key})
            done = reader.record_event()
        with torch.npu.stream(writer):
            writer.wait_event(done)
            key.fill_(9.0)  # only after the attention has read it
        reader.synchronize()
        _expect(result, inputs, seed)


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
    _expect(toptheta_npu.incremental_attention(**inputs), inputs, "after")


def fork() -> None:
    """A process forked after the import, which is the one that uses the device."""
    child = os.fork()
    if child == 0:
        inputs = _inputs(0)
        _expect(toptheta_npu.incremental_attention(**inputs), inputs, "child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


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
    command = [sys.executable, __file__, scenario]
    given = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=300)


def assert_passes(scenario: str, **variables: str) -> None:
    done = run(scenario, **variables)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("asynchronous", ["0", "1"], ids=["sync", "async"])
@pytest.mark.parametrize("queue", _QUEUES)
def test_order(queue: str, asynchronous: str) -> None:
    assert_passes("many_calls,streams", TASK_QUEUE_ENABLE=queue, TOPTHETA_EMULATOR_ASYNC=asynchronous)


@pytest.mark.parametrize("scenario", ["fork", "threads"])
def test_processes_and_threads(scenario: str) -> None:
    assert_passes(scenario, TOPTHETA_EMULATOR_ASYNC="1")


def test_two_devices() -> None:
    assert_passes("two_devices", TOPTHETA_EMULATOR_DEVICES="2")


def test_out_of_memory() -> None:
    assert_passes("out_of_memory", TOPTHETA_EMULATOR_MEMORY_MB="128")


#: What is replaced in the source, by what, the scenario and settings under which it shows, and as what.
_FAULTS = {
    "descriptors-die-early": (
        "    RunAclCall(kOperator,", "    launch.resources->Release();\n    RunAclCall(kOperator,",
        "many_calls", {"TASK_QUEUE_ENABLE": "1"},
        "query: its aclTensor has been destroyed; keep it until the second phase has returned",
    ),
    "not-the-current-stream": (
        "void* const stream = GetAclStream();",
        "static void* const stream = GetAclStream();",
        "streams", {"TASK_QUEUE_ENABLE": "1", "TOPTHETA_EMULATOR_ASYNC": "1"}, "AssertionError: 0: off by ",
    ),
    "no-device-guard": (
        "    const c10::DeviceGuard guard(arguments.query.device());\n", "",
        "two_devices", {"TOPTHETA_EMULATOR_DEVICES": "2"}, "on device 0, got other memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_in_the_adapter_is_seen(fault: str, tmp_path: Path) -> None:
    text, replacement, scenario, variables, seen = _FAULTS[fault]
    source = build.SOURCE.read_text()
    assert source.count(text) == 1
    package = environment.find_package()
    assert package is not None
    vendor = tmp_path / "vendors" / "toptheta"
    shutil.copytree(package.folder, vendor)
    faulty = tmp_path / "adapter.cpp"
    faulty.write_text(source.replace(text, replacement))
    build.build_adapter(vendor / "torch", source=faulty)
    done = run(scenario, ASCEND_CUSTOM_OPP_PATH=str(vendor), **variables)
    assert done.returncode != 0
    assert seen in done.stderr


if __name__ == "__main__":
    import torch_npu  # noqa: F401 (registers torch.npu)

    for name in sys.argv[1].split(","):
        globals()[name]()
