"""Builds the unit tests in googletest and reports each; they lie where Ascend's operator repositories keep theirs."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

from emulator.acl import build_libraries, install_torch_npu, make_op_package, read_project
from emulator.acl.libraries import acl_options
from emulator.ascendc.build import build_kernel
from emulator.compile_cache import default_compiler, run_compiler
from toptheta_host_model import OPERATOR, PROJECT_FILE, kernel_for

_FOLDER = Path(__file__).resolve().parent
_EMULATOR = _FOLDER.parents[1] / "emulator"
_TESTS = re.compile(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", re.MULTILINE)


def _sources(part: str) -> list[Path]:
    return sorted((_FOLDER / part).glob("test_*.cpp"))


def _names(part: str) -> list[str]:
    return [".".join(found) for source in _sources(part) for found in _TESTS.findall(source.read_text())]


@cache
def _has_googletest() -> bool:
    command = [default_compiler(), "-E", "-include", "gtest/gtest.h", "-x", "c++", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _build(part: str, target: Path, *options: str) -> None:
    if not _has_googletest():
        pytest.skip("needs googletest: apt-get install libgtest-dev")
    run_compiler([
        default_compiler(), "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{_FOLDER / 'common'}",
        "-o", str(target), *map(str, _sources(part)), *options, "-lgtest", "-lgtest_main", "-pthread",
    ])  # fmt: skip


def _run(program: Path, name: str) -> None:
    """The test of that name with all of its cases."""
    command = [str(program), f"--gtest_filter={name}:*/{name}/*", "--gtest_brief=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\[  PASSED  \] [1-9]\d* test", done.stdout), "no test of that name has run"


def _linked(library: Path) -> list[str]:
    return [str(library), f"-Wl,-rpath,{library.parent}"]


@pytest.fixture(scope="module")
def op_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("ut") / "op_host"
    folder = _EMULATOR / "cann"
    _build("op_host", program, f"-I{folder}", f"-I{folder / 'include'}", *_linked(OPERATOR.library()))
    return program


@pytest.fixture(scope="module")
def op_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("ut") / "op_kernel"
    _build("op_kernel", program, f"-I{_EMULATOR / 'ascendc'}", *_linked(build_kernel(kernel_for(torch.bfloat16))))
    return program


@pytest.fixture(scope="module")
def op_api(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ut")
    install_torch_npu()
    runtime = build_libraries()
    package = make_op_package(read_project(PROJECT_FILE), folder) / "op_api"
    _build(
        "op_api", folder / "op_api", f"-I{package / 'include'}", *acl_options(), f"-L{runtime}",
        f"-Wl,-rpath,{runtime}", *_linked(package / "lib" / "libcust_opapi.so"), "-lopapi", "-lascendcl",
    )  # fmt: skip
    return folder / "op_api"


@pytest.mark.parametrize("name", _names("op_host"))
def test_op_host(name: str, op_host: Path) -> None:
    _run(op_host, name)


@pytest.mark.parametrize("name", _names("op_kernel"))
def test_op_kernel(name: str, op_kernel: Path) -> None:
    _run(op_kernel, name)


@pytest.mark.parametrize("name", _names("op_api"))
def test_op_api(name: str, op_api: Path) -> None:
    _run(op_api, name)
