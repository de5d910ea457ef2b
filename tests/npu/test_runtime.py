"""The emulated runtime under torch_npu. The same tests pass in synchronous and in asynchronous mode."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from emulator.acl.settings import current_settings
from tests.npu.acl_calls import current_stream, recent_error, runtime

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool)


def occupy_stream() -> None:
    """Put 0.2 s of work on the current stream."""
    # a function of the C library: one of Python would wait for the interpreter, which may wait for the stream
    sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    assert runtime().aclrtLaunchHostFunc(current_stream(), sleep, ctypes.c_void_p(200_000)) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_keep_values(dtype: torch.dtype) -> None:
    x = (torch.randn(5, 7, 3) * 10).to(dtype)
    on_device = x.npu()
    assert on_device.device.type == "npu"
    assert torch.equal(on_device.cpu(), x)
    assert torch.equal(on_device.clone().cpu(), x)
    assert torch.equal(on_device.transpose(0, 2).contiguous().cpu(), x.transpose(0, 2))
    assert torch.equal(on_device[1:4, ::2].cpu(), x[1:4, ::2])


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_conversions_round_like_torch(source: torch.dtype, target: torch.dtype) -> None:
    steps = torch.arange(-2048.0, 2048.0) / 3
    small = torch.tensor([0.0, -0.0, 6e-8, 2.9e-8, 3e-8, 6.1e-5, 65519.0, 1e-3, 2049.0, 2051.0])
    x = torch.cat([steps, small]).to(source)
    assert torch.equal(x.npu().to(target).cpu(), x.to(target))


def test_copies_to_pinned_memory_are_done_after_synchronize() -> None:
    x = torch.randn(1000)
    target = torch.empty(1000).pin_memory()
    target.copy_(x.npu(), non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(target, x)


def test_an_event_orders_two_streams() -> None:
    first, second = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(100, device="npu")
    torch.npu.synchronize()
    done = torch.npu.Event()
    with torch.npu.stream(first):
        occupy_stream()
        x.fill_(1)
        done.record()
    with torch.npu.stream(second):
        second.wait_event(done)
        y = x.clone()
    second.synchronize()
    assert torch.equal(y.cpu(), torch.ones(100))


def test_events_measure_time() -> None:
    begin, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    begin.record()
    occupy_stream()
    end.record()
    end.synchronize()
    assert begin.query()
    assert 190 <= begin.elapsed_time(end) < 100_000  # milliseconds, however busy the machine


def test_memory_is_counted() -> None:
    torch.npu.empty_cache()
    free, total = torch.npu.mem_get_info()
    x = torch.empty(64 << 20, dtype=torch.uint8, device="npu")
    now, unchanged = torch.npu.mem_get_info()
    # torch_npu asks for whole MiB and for a little more than the tensor
    assert x.numel() <= free - now <= x.numel() + (4 << 20)
    assert unchanged == total
    del x
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info()[0] == free


def _train(model: nn.Module, x: Tensor) -> Tensor:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach().cpu()


def test_ordinary_operators_run_on_the_cpu() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    expected = _train(model, x)
    model.load_state_dict(weights)
    assert torch.allclose(_train(model.npu(), x.npu()), expected, rtol=1e-5)


def _stand_ins() -> list[str]:
    source = Path(current_settings().get("libraries", "")) / "stand_ins.cpp"
    return re.findall(r"int (\w+)\(\) \{", source.read_text()) if source.is_file() else []


@pytest.mark.parametrize("name", _stand_ins())
def test_an_unimplemented_function_fails_with_its_name(name: str) -> None:
    assert getattr(runtime(), name)() == 207000
    assert recent_error() == f"[emulated NPU] {name}: not implemented by the emulator"
    assert recent_error() == ""


def test_a_copy_outside_device_memory_is_refused() -> None:
    host = ctypes.create_string_buffer(16)
    kind = 1  # host to device
    assert runtime().aclrtMemcpy(host, ctypes.c_size_t(16), host, ctypes.c_size_t(16), kind) == 107000
    assert "aclrtMemcpy: expected device memory as target" in recent_error()
    on_device = torch.ones(16, dtype=torch.uint8, device="npu")
    target, size = ctypes.c_void_p(on_device.data_ptr()), ctypes.c_size_t(16)
    assert runtime().aclrtMemcpy(target, size, target, size, kind) == 107000
    assert "aclrtMemcpy: expected host memory as source, got device memory" in recent_error()


def test_a_graph_is_replayed_with_new_contents() -> None:
    x = torch.ones(1000, device="npu")
    y = torch.zeros(1000, device="npu")
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y.copy_(x)
    torch.npu.synchronize()
    assert not y.cpu().any()
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        torch.npu.synchronize()
        assert torch.equal(y.cpu(), torch.full((1000,), value))
