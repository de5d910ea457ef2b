"""A small source, a cache of its own, and compilers that fail in every way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cpu.builds import best_level
from toptheta_npu import _compiler
from toptheta_npu.cpu import build, cache, instruction_sets, library


@pytest.fixture
def level() -> str:
    return best_level()


@pytest.fixture(params=instruction_sets.available() or [""])
def each_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set of this CPU in turn."""
    best_level()
    monkeypatch.setenv(instruction_sets.VARIABLE, request.param)
    monkeypatch.setattr(library, "_LIBRARIES", {})
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, which does not exist yet."""
    for variable in (_compiler.VARIABLE, instruction_sets.VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A unit that answers 42, and two headers, in the kernel's place."""
    best_level()
    place = tmp_path / "source"
    place.mkdir()
    (place / "answer.h").write_text('#include "inner.h"\nenum Element { Float32 = 32, Float16 = 16, BFloat16 = 17 };\n')
    (place / "inner.h").touch()
    unit = place / "unit.cpp"
    unit.write_text(
        '#include "answer.h"\n'
        '#define PUBLIC extern "C" __attribute__((visibility("default")))\n'
        "PUBLIC int answer() { return 42; }\n"
        "PUBLIC int element() { return TOPTHETA_ELEMENT; }\n"
    )
    monkeypatch.setattr(build, "SOURCE", unit)
    return unit


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Makes a shell script, by default one that counts its runs as a compiler and is g++."""

    def make(body: str = 'exec g++ "$@"', name: str = "compiler", answers: str = "g++ (made up) 12.2.0") -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        version = f'case "$*" in *--version*) echo "{answers}"; exit;; esac' if answers else ""
        path.write_text(f"#!/bin/sh\n{version}\necho run >> {tmp_path}/runs\n{body}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], int]:
    """How often a compiler of `script` has compiled."""
    return lambda: len((tmp_path / "runs").read_text().splitlines()) if (tmp_path / "runs").exists() else 0
