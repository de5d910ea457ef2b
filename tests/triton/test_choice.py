"""What CUDA tensors run: the Triton kernels, or the PyTorch fallback, as chosen and as the machine allows.

The selector is asked itself, with CPU tensors: what decides looks at no tensor.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import toptheta_npu
from tests.op_packages import forget_choices
from toptheta_npu import TopThetaBackendError
from toptheta_npu._findings import Finding
from toptheta_npu.cli import app
from toptheta_npu.fallback import Arguments
from toptheta_npu.triton import backend
from toptheta_npu.triton.backend import CUDA_SELECTOR, what_cuda_runs

_ABSENT = "Triton, which CUDA builds of torch bring, got import of triton halted; None in sys.modules"
_REMEDY = "pip install triton, or choose toptheta_npu.use_backend('fallback', device='cuda')"


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_choices(monkeypatch)
    monkeypatch.setattr(CUDA_SELECTOR, "_logged", set())


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands for the operators over the kernels, which are there."""
    found = SimpleNamespace(incremental_attention=lambda arguments: "by the kernels")
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.6.0"))
    monkeypatch.setattr(backend, "_import_operators", lambda: found)
    return found


def run() -> Any:
    query, cache = torch.ones(1, 2, 1, 16), torch.ones(1, 1, 4, 16)
    return CUDA_SELECTOR.runner("incremental_attention")(Arguments(2, 1, 0.25, query, cache, cache, torch.zeros(2)))


def test_the_kernels_run_without_a_choice_where_triton_is(kernels: SimpleNamespace) -> None:
    assert run() == "by the kernels"
    assert what_cuda_runs(CUDA_SELECTOR, probe=True) == Finding("operators", "Triton kernels, Triton 3.6.0")


def test_a_choice_holds_that_is_made_while_a_first_call_imports(
    kernels: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_and_choose() -> SimpleNamespace:
        toptheta_npu.use_backend("fallback", device="cuda")
        return kernels

    monkeypatch.setattr(backend, "_import_operators", import_and_choose)
    assert run() == "by the kernels"
    assert isinstance(run(), torch.Tensor)


def test_a_call_runs_on_the_device_of_its_tensors(kernels: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[torch.Tensor] = []

    @contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        entered.append(tensor)
        yield
        entered.clear()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    kernels.incremental_attention = lambda arguments: len(entered) == 1 and entered[0] is arguments.query
    assert run() is True


def test_without_triton_the_fallback_runs_and_one_warning_says_why(
    absent: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "toptheta_npu"):
        assert torch.equal(run(), torch.ones(1, 2, 1, 16))
        with toptheta_npu.use_backend("fallback", device="cuda"):
            run()
        run()  # looks again, and has nothing new to say
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"toptheta_npu runs its PyTorch fallback on CUDA: triton: expected {_ABSENT}; {_REMEDY}"
    )
    assert what_cuda_runs(CUDA_SELECTOR, probe=True) == Finding(
        "operators", "PyTorch fallback", f"triton: expected {_ABSENT}", _REMEDY
    )


def test_a_triton_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.2.0"))
    assert torch.equal(run(), torch.ones(1, 2, 1, 16))
    assert str(CUDA_SELECTOR.failure) == (
        "triton: expected Triton 3.3 or newer, which comes with torch 2.7, got 3.2.0; "
        "update torch, or choose toptheta_npu.use_backend('fallback', device='cuda')"
    )


def test_triton_as_chosen_raises_where_it_is_not(absent: None, caplog: pytest.LogCaptureFixture) -> None:
    with toptheta_npu.use_backend("triton"):
        for _ in range(2):
            with pytest.raises(TopThetaBackendError, match=r"^triton: expected Triton, .*; pip install triton, or"):
                run()
        assert what_cuda_runs(CUDA_SELECTOR, probe=True).found is None
    assert not caplog.records


def test_the_fallback_as_chosen_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_import_triton", None)
    monkeypatch.setattr(backend, "_import_operators", None)
    with toptheta_npu.use_backend("fallback", device="cuda"):
        run()
        assert what_cuda_runs(CUDA_SELECTOR, probe=True) == Finding("operators", "PyTorch fallback, as chosen")


def test_a_gpu_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_import_triton", lambda: SimpleNamespace(__version__="3.6.0"))
    monkeypatch.setattr(backend, "_capability", lambda: (7, 5))
    with pytest.raises(TopThetaBackendError) as caught:
        backend._import_operators()
    assert str(caught.value) == (
        "device: expected a GPU of compute capability 8.0 or more, got 7.5; "
        "choose toptheta_npu.use_backend('fallback', device='cuda')"
    )
    assert what_cuda_runs(CUDA_SELECTOR, probe=True).found == "PyTorch fallback"


@pytest.mark.parametrize(
    ("choice", "lines"),
    [
        ("auto", [f"yes     CUDA          PyTorch fallback, 2 devices; the Triton kernels do not run: triton: expected "
                  f"{_ABSENT}", f"        to do: {_REMEDY}"]),
        ("triton", [f"no      CUDA          triton: expected {_ABSENT}", f"        to do: {_REMEDY}"]),
        ("fallback", ["yes     CUDA          PyTorch fallback, as chosen, 2 devices"]),
    ],
)  # fmt: skip
def test_doctor_says_which_and_why(
    choice: str, lines: list[str], absent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(backend, "_capability", lambda: (9, 0))
    with toptheta_npu.use_backend(choice, device="cuda"):
        printed = CliRunner().invoke(app, ["doctor", "--no-probe"]).stdout.splitlines()
    at = next(index for index, line in enumerate(printed) if " CUDA " in line)
    assert printed[at : at + len(lines)] == lines
