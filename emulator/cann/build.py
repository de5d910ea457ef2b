"""Compiles a few C++ files into one shared library, once per state of all files it may depend on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..compile_cache import cached_folder, compiler_version, default_compiler, run_compiler

_FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


def build_library(
    name: str, sources: Sequence[Path], include_dirs: Sequence[Path], compiler: str | None = None
) -> Path:
    """Compile the shared library of `sources`, unless neither they nor a header near them has changed.

    Headers are looked for in ``include_dirs`` and in the folders of the sources. Several processes may build at once.

    Args:
        compiler: the C++ compiler; None takes $CXX or g++.

    Raises:
        CompileError: the compiler refuses a source.
        FileNotFoundError: there is no such compiler.
    """
    compiler = compiler or default_compiler()
    command = [compiler, *_FLAGS, *(f"-I{path}" for path in include_dirs), *map(str, sources)]

    def build(folder: Path) -> None:
        run_compiler([*command, "-o", str(folder / f"lib{name}.so")])

    inputs: list[str | Path] = [compiler_version(compiler), *command, *_inputs(sources, include_dirs)]
    return cached_folder(f"host-{name}", inputs, build) / f"lib{name}.so"


def _inputs(sources: Sequence[Path], include_dirs: Sequence[Path]) -> list[Path]:
    folders = {*include_dirs, *(source.parent for source in sources)}
    headers = {header for folder in folders for header in folder.rglob("*.h")}
    return sorted({*sources, *headers})
