"""``toptheta doctor`` and ``toptheta --version`` on a machine without an NPU."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import toptheta_npu
from tests.cpu.builds import best_level
from tests.helpers import has_npu
from toptheta_npu._compiler import find_compiler
from toptheta_npu._findings import Finding
from toptheta_npu.cli import app
from toptheta_npu.cpu import cache, library
from toptheta_npu.cpu.backend import CPU_SELECTOR


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TOPTHETA_BACKEND", raising=False)
    CPU_SELECTOR.choose(None)
    yield
    CPU_SELECTOR.choose(None)


@pytest.fixture
def level() -> str:
    return best_level()


pytestmark = pytest.mark.skipif(has_npu(), reason="there is an NPU")
diagnosis = sys.modules["toptheta_npu.cli.doctor"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--no-probe", *arguments])


def without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing can be built and nothing is kept, nor is it loaded."""
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_LIBRARIES", {})
    monkeypatch.setattr(CPU_SELECTOR, "_logged", set())


def test_what_works_comes_first() -> None:
    lines = run().stdout.splitlines()
    assert lines[0] == "What works here"
    assert lines[1].startswith("yes     CPU           ")
    (transformers,) = [index for index, line in enumerate(lines) if line.startswith("yes     transformers  ")]
    assert transformers < lines.index("What an Ascend NPU needs")


def test_a_cpu_with_its_native_kernel(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    lines = run().stdout.splitlines()
    assert lines[1] == f"yes     CPU           native ({level}), torch {torch.__version__}"
    assert lines[2].startswith(f"        instruction set: {level}")
    assert lines[3] == f"        compiler: {find_compiler()}"
    assert lines[4] == f"        cache: {cache.cache_folder()}"
    assert lines[-1].endswith("CPU tensors run the native kernel.")


def test_a_cpu_without_a_compiler(
    level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without_a_compiler(monkeypatch, tmp_path)
    done = run()
    assert done.exit_code == 0
    assert caplog.records == [], "what is in the output need not be in the log"
    lines = done.stdout.splitlines()
    assert lines[1:6] == [
        f"yes     CPU           PyTorch fallback, torch {torch.__version__}; the native kernel does not run: "
        "compiler: expected g++ or $CXX, got /no/such/compiler",
        "        to do: install g++ 9 or newer, for example: apt-get install g++, or unset CXX",
        lines[3],
        "        compiler: expected g++ or $CXX, got /no/such/compiler",
        f"        cache: {tmp_path / 'cache'}",
    ]
    assert lines[-1].endswith("CPU tensors run the PyTorch fallback.")
    report = json.loads(run("--json").stdout)
    assert report["cpu_backend"] == "auto"
    assert [finding["name"] for finding in report["cpu_findings"]] == [
        "instruction set", "compiler", "cache", "threads", "operators"
    ]  # fmt: skip
    assert report["cpu_findings"][-1]["found"] == "PyTorch fallback"


def test_a_cpu_that_must_be_native_and_cannot(level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_compiler(monkeypatch, tmp_path)
    with toptheta_npu.use_backend("native"):
        done = run()
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[1] == "no      CPU           compiler: expected g++ or $CXX, got /no/such/compiler"
    assert lines[2] == "        to do: install g++ 9 or newer, for example: apt-get install g++, or unset CXX"
    assert lines[-1] == "The operators do not run here."


def test_a_misspelt_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPTHETA_BACKEND", "cpu=gpu")
    done = run()
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1] == (
        "no      CPU           TOPTHETA_BACKEND for cpu: expected one of auto, native, fallback, got 'gpu'"
    )


@pytest.mark.parametrize(
    ("choice", "meaning"),
    [
        ("", "npu: NPU tensors run the op package, and raise an error where it cannot run"),
        ("npu=auto", "auto: NPU tensors run the op package, or the PyTorch fallback where it cannot run"),
        ("npu=fallback", "fallback: NPU tensors run the PyTorch fallback"),
    ],
)
def test_the_backend_is_a_choice_and_not_a_thing_that_is_found(
    choice: str, meaning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPTHETA_BACKEND", choice)
    assert f"chosen  backend       {meaning}" in run().stdout.splitlines()


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--strict"], 1), (["--json"], 0)])
def test_exit_status(arguments: list[str], status: int) -> None:
    assert run(*arguments).exit_code == status


def test_a_cpu_that_gives_wrong_results_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toptheta_npu, "incremental_attention", lambda query, *_: 2 * query)
    done = run()
    assert done.exit_code == 1
    assert re.search(r"^no      CPU           a wrong result \(.*\)$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("The operators do not run here.\n")


def test_transformers_of_another_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.57.6")
    assert diagnosis._transformers() == Finding(
        "transformers", "4.57.6", "made for transformers 5", "in a clone: pip install '.[hf]'"
    )


def test_json_has_both_parts() -> None:
    report = json.loads(run("--json").stdout)
    assert [finding["name"] for finding in report["here"]] == ["CPU", "transformers", "CUDA"]
    assert report["usable"] is False


def test_version_without_importing_torch_npu() -> None:
    code = "import sys; sys.argv = ['toptheta', '--version']; import toptheta_npu.cli as c\ntry: c.main()\n"
    code += "finally: assert 'torch_npu' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"toptheta_npu {importlib.metadata.version('toptheta_npu')}"
    assert lines[1] == f"torch {importlib.metadata.version('torch')}"
    assert lines[2].startswith("torch_npu ")
    assert lines[3:] == ["backend cpu=auto,cuda=auto,npu=npu"]
