"""What CPU tensors run: the native kernel, or the PyTorch fallback, as chosen and as the machine allows."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import toptheta_npu
from tests.cases import valid_arguments
from toptheta_npu import TopThetaBackendError, TopThetaValueError, fallback
from toptheta_npu._backends import VARIABLE
from toptheta_npu.cpu import backend, build, instruction_sets
from toptheta_npu.cpu.backend import CPU_SELECTOR
from toptheta_npu.ops import SCHEMAS

_ERROR = TopThetaBackendError("compiler", "g++ or $CXX", "none of g++, c++, clang++", "install g++")


class Native:
    """Stands for the native operators: it notes what is loaded and called, and loads nothing in vain.

    Attributes:
        failure: what `load` raises, if anything.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.loaded: list[torch.dtype] = []
        self.called: list[str] = []

    def load(self, dtype: torch.dtype) -> None:
        self.loaded.append(dtype)
        if self.failure is not None:
            raise self.failure

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self.called.append(name)
            return getattr(fallback, name)(*arguments, **options)

        return run


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[Native]:
    """Native operators that the test makes fail, and no choice."""
    found = Native()
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(backend, "_import_operators", lambda: found)
    monkeypatch.setattr(CPU_SELECTOR, "_logged", set())
    CPU_SELECTOR.choose(None)
    yield found
    CPU_SELECTOR.choose(None)


def call(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    query, cache = torch.ones(1, 2, 1, 16, dtype=dtype), torch.ones(1, 1, 4, 16, dtype=dtype)
    return toptheta_npu.incremental_attention(query, cache, cache, torch.zeros(2))


def test_every_operator_runs_natively(native: Native) -> None:
    arguments = valid_arguments("decode")
    for name in SCHEMAS:
        getattr(toptheta_npu, name)(**arguments)
    assert native.called == list(SCHEMAS)


def test_a_choice_holds_that_is_made_while_a_first_call_loads(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread makes it as a rule: a first call may build for a minute."""
    monkeypatch.setattr(native, "load", lambda dtype: CPU_SELECTOR.choose("fallback"))
    call()
    native.called.clear()
    call()
    assert not native.called


def test_each_dtype_is_loaded_once(native: Native) -> None:
    for _ in range(3):
        for dtype in (torch.float32, torch.bfloat16):
            call(dtype)
    assert native.loaded == [torch.float32, torch.bfloat16]
    assert len(native.called) == 6


def test_a_call_does_not_decide_again(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    call()
    monkeypatch.setattr(CPU_SELECTOR, "_decide", None)
    monkeypatch.setenv(VARIABLE, "nonsense")
    call()


def test_the_fallback_looks_for_nothing(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_import_operators", None)
    with toptheta_npu.use_backend("fallback"):
        call()
    monkeypatch.setenv(VARIABLE, "cpu=fallback")
    call()


def test_auto_falls_back_and_says_once_why(native: Native, caplog: pytest.LogCaptureFixture) -> None:
    native.failure = _ERROR
    with caplog.at_level(logging.INFO, "toptheta_npu"):
        for dtype in (torch.float32, torch.float32, torch.bfloat16):
            call(dtype)
        with toptheta_npu.use_backend("fallback"):
            call()
        call()  # looks again, and has nothing new to say
    assert native.called == []
    assert native.loaded == [torch.float32, torch.bfloat16, torch.float32]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "toptheta_npu runs its PyTorch fallback on the CPU: compiler: expected g++ or $CXX, "
        "got none of g++, c++, clang++; install g++"
    )


def test_what_failed_for_one_operator_is_not_tried_for_the_others(native: Native) -> None:
    native.failure = _ERROR
    for name in SCHEMAS:
        getattr(toptheta_npu, name)(**valid_arguments("decode"))
    assert len(native.loaded) == 1


def test_native_raises_where_it_cannot_run(native: Native, caplog: pytest.LogCaptureFixture) -> None:
    native.failure = _ERROR
    with toptheta_npu.use_backend("native"):
        for _ in range(2):
            with pytest.raises(TopThetaBackendError) as caught:
                call()
            assert caught.value is _ERROR
        native.failure = None
        call()
    assert caplog.records == []


@pytest.mark.parametrize("name", ["auto", "native"])
def test_a_misspelt_level_is_an_error_in_any_case(name: str, native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx")
    native.load = lambda dtype: instruction_sets.chosen()  # type: ignore[method-assign]
    with toptheta_npu.use_backend(name, "cpu"), pytest.raises(TopThetaValueError, match=r"^TOPTHETA_CPU_LEVEL: "):
        call()


def test_a_choice_is_a_new_attempt(native: Native) -> None:
    native.failure = _ERROR
    call()
    native.failure = None
    call()
    assert native.called == []
    with toptheta_npu.use_backend("auto"):
        call()
        assert native.called == ["incremental_attention"]
    assert native.loaded == [torch.float32] * 2


def test_other_dtypes_of_the_registered_operator_run_the_fallback(native: Native) -> None:
    """The public functions refuse them."""
    name = "incremental_attention"
    assert CPU_SELECTOR.implementation(name, torch.float64) is CPU_SELECTOR.fallbacks[name]
    assert native.loaded == []


# The real thing, in a process of its own.


def run(code: str, **variables: str) -> SimpleNamespace:
    """What code prints when it has called the operator, and the lines of the log."""
    script = (
        "import torch, toptheta_npu\n"
        "query, cache = torch.ones(1, 2, 1, 16), torch.ones(1, 1, 4, 16)\n"
        "call = lambda: toptheta_npu.incremental_attention(query, cache, cache, torch.zeros(2))\n" + code
    )
    given = {name: value for name, value in os.environ.items() if name not in ("CXX", VARIABLE)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=given | variables, capture_output=True, text=True, check=True
    )
    return SimpleNamespace(out=done.stdout.splitlines(), log=done.stderr.splitlines())


def test_without_a_compiler_all_is_well_and_one_line_says_why(tmp_path: Path) -> None:
    code = "for _ in range(3): out = call()\nprint(out.sum().item(), len(list(__import__('os').scandir('.'))))"
    done = run(f"import os; os.chdir({str(tmp_path)!r})\n{code}", CXX="/no/such/compiler", TOPTHETA_CACHE=str(tmp_path))
    assert done.out == ["32.0 0"]
    assert done.log == [
        "toptheta_npu runs its PyTorch fallback on the CPU: compiler: expected g++ or $CXX, got /no/such/compiler; "
        "install g++ 9 or newer, for example: apt-get install g++, or unset CXX"
    ]


# Telling.


def findings(**options: bool) -> dict[str, tuple[str | None, str | None, str | None]]:
    """Found, problem and remedy of what `backend_info` looked at."""
    found = toptheta_npu.backend_info(**options).cpu_findings
    return {finding.name: (finding.found, finding.problem, finding.remedy) for finding in found}


@pytest.mark.usefixtures("source")
def test_telling_builds_nothing(native: Native, level: str, folder: Path) -> None:
    found = findings()
    assert list(found) == ["instruction set", "compiler", "cache", "threads", "operators"]
    assert found["cache"] == (str(folder), None, None)
    assert found["operators"] == (f"native ({level}), which the first call builds", None, None)
    assert not folder.exists()
    assert native.loaded == []
    assert toptheta_npu.backend_info().cpu_backend == "auto"
    build.library("float32")
    assert findings()["operators"] == (f"native ({level})", None, None)


@pytest.mark.parametrize(("name", "found"), [("auto", "PyTorch fallback"), ("native", None)])
def test_telling_why_it_is_not_native(
    name: str, found: str | None, native: Native, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    problem = "compiler: expected g++ or $CXX, got /no/such/compiler"
    remedy = "install g++ 9 or newer, for example: apt-get install g++, or unset CXX"
    with toptheta_npu.use_backend(name, "cpu"):
        assert findings()["compiler"] == (None, problem, remedy)
        assert findings()["operators"] == (found, problem, remedy)
        native.failure = _ERROR
        assert findings(probe=True)["operators"] == (found, _ERROR.problem, "install g++")
        assert toptheta_npu.backend_info().cpu_backend == name


def test_telling_the_fallback(native: Native, level: str, folder: Path) -> None:
    with toptheta_npu.use_backend("fallback"):
        assert findings(probe=True)["operators"] == ("PyTorch fallback, as chosen", None, None)
    assert native.loaded == []


def test_telling_a_wrong_level(native: Native, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx")
    problem = f"TOPTHETA_CPU_LEVEL: expected one of {', '.join(instruction_sets.LEVELS)}, got 'avx'"
    found = findings()
    for name in ("instruction set", "operators"):
        assert found[name] == (None, problem, "unset TOPTHETA_CPU_LEVEL")
    assert found["cache"] == (str(folder), None, None)
