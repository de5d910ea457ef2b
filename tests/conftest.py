"""What every test shares: the hypothesis profile and the device a case runs on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

import toptheta_npu
from tests.helpers import has_npu
from tests.interpreter import interpreting, is_interpreting
from tests.tiers import full, thin

_SLOW_MACHINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
# "ci" draws the same examples on every run; HYPOTHESIS_PROFILE=explore looks for new ones, as many as EXAMPLES
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25, suppress_health_check=_SLOW_MACHINE)
_EXAMPLES = int(os.environ.get("EXAMPLES", "500"))
settings.register_profile("explore", deadline=None, max_examples=_EXAMPLES, suppress_health_check=_SLOW_MACHINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# a shell lets its background jobs ignore interrupts, and so would the processes that tests start and interrupt
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Tests of a minute in Triton's interpreter.
_LONG_INTERPRETED = ("60000_keys", "compile_needs_one_graph", "int8-bf16-channel-d128-g1", "many_survivors")


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "a checkout of vllm-ascend, against which the record of its sources is compared"
    parser.addoption("--vllm-ascend-source", metavar="FOLDER", help=what)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    thin(items)
    interpreted = {item for item in items if item.get_closest_marker("triton")}
    for item in interpreted:
        if any(name in item.nodeid for name in _LONG_INTERPRETED):
            item.add_marker(full)
    if not is_interpreting():
        config.hook.pytest_deselected(items=list(interpreted))
        items[:] = [item for item in items if item not in interpreted]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: content made at import (a gzip header holds the time) differs between workers."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(
    params=[
        "cpu-native",
        "cpu-fallback",
        pytest.param("cpu-triton", marks=pytest.mark.triton),
        pytest.param("cuda-triton", marks=pytest.mark.cuda),
        pytest.param("cuda-fallback", marks=pytest.mark.cuda),
        pytest.param("npu", marks=pytest.mark.npu),
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device under test: a CPU or a GPU with each of its backends, others with the fallback; skipped if absent.

    "cpu-triton" runs the Triton kernels in Triton's interpreter.
    """
    yield from _device(request.param)


@pytest.fixture(
    params=[
        "cpu-fallback",
        pytest.param("cuda-fallback", marks=pytest.mark.cuda),
        pytest.param("npu", marks=pytest.mark.npu),
    ]
)
def fallback_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device under test, with the PyTorch fallback, for what only that takes."""
    yield from _device(request.param)


def _device(parameter: str) -> Iterator[str]:
    name, _, backend = parameter.partition("-")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "npu": name == "npu" and has_npu()}
    if not available[name]:
        pytest.skip(f"no {name} device")
    if parameter == "cpu-triton":
        with interpreting():
            yield name
        return
    # the NPU kernel's own tests are in tests/npu
    with toptheta_npu.use_backend(backend or "fallback", device=name):
        yield name if name == "cpu" else f"{name}:0"


@pytest.fixture(params=["native", "fallback"], scope="module")
def cpu_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """What CPU tensors run, for tests that look at CPUs alone."""
    with toptheta_npu.use_backend(request.param, device="cpu"):
        yield request.param
