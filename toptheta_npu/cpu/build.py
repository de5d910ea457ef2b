"""Builds the CPU kernel on the machine that runs it: ``python -m toptheta_npu.cpu.build``, or the first call.

Needs a C++17 compiler and nothing of torch. One shared library is built for one dtype and one level of
`instruction_sets`, and kept under a name that says what it was made from: sources, flags and compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .._compiler import INSTALL, Compiler, CompilerFailure, find_compiler, run_compiler, unfinished_folder
from .._version import __version__
from ..errors import TopThetaBackendError, TopThetaError
from . import cache, instruction_sets
from .cache import cache_folder

SOURCE = Path(__file__).with_name("source") / "incremental_attention.cpp"
#: What the layers of a serving engine call.
SERVING_SOURCE = SOURCE.with_name("serving.cpp")
#: The kernel's names of the dtypes that it is built for.
ELEMENTS = {"float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16"}
# nobody reads errno or the exception flags of floating point, which would keep loops from becoming vector code
_MATHS = ("-fno-math-errno", "-fno-trapping-math")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", *_MATHS, "-Wall", "-Wextra")
_BUILD_SECONDS = 120
_INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)
_UNKNOWN_LEVEL = re.compile(
    r"unrecognized command[- ]line option|unrecognized argument|unknown argument|unsupported argument|"
    r"invalid feature modifier|no such instruction"
)
_logger = logging.getLogger("toptheta_npu")


class Library(NamedTuple):
    """A shared library that may be loaded here, and the level that it was built for."""

    path: Path
    level: str


class _LevelUnknown(TopThetaBackendError):
    """The compiler or its assembler is older than the instruction set."""


@dataclass(frozen=True)
class _Unit:
    """What is compiled: the sources as they were when they were read, and how."""

    dtype_name: str
    level: instruction_sets.Level
    main: str
    sources: dict[str, bytes]

    @property
    def flags(self) -> list[str]:
        return [*_FLAGS, *self.level.compiler_flags, f"-DTOPTHETA_ELEMENT={ELEMENTS[self.dtype_name]}"]

    @property
    def name(self) -> str:
        """A name that depends on everything but the compiler."""
        parts = [__version__, self.dtype_name, self.main, *self.flags]
        for file, content in sorted(self.sources.items()):
            parts += [file, hashlib.sha256(content).hexdigest()]
        return f"{self.dtype_name}-{self.level.name}-{_digest(parts)}"

    def entry(self, folder: Path, compiler: Compiler) -> Path:
        """Name the folder that keeps the library that this compiler makes of it."""
        return folder / f"{self.name}-{_digest([*compiler.command[1:], compiler.path, compiler.version])}"

    def entries(self, folder: Path) -> list[Path]:
        """Find the folders that keep the libraries of all compilers."""
        return sorted(folder.glob(f"{self.name}-*"))


def best_library(dtype_name: str, *, source: Path = SOURCE) -> Library:
    """Find the library of the best level that this machine runs and its compiler knows; build it if need be.

    Where nothing can be built, take the best one that is kept.

    Args:
        dtype_name: "float32", "float16" or "bfloat16".
        source: the C++ unit; the files beside it that it includes belong to it.

    Raises:
        TopThetaBackendError: there is none; the message says why and what to type.
        TopThetaValueError: TOPTHETA_CPU_LEVEL names no level.
    """
    failure: TopThetaBackendError | None = None
    for level in instruction_sets.levels():
        if failure is None or isinstance(failure, _LevelUnknown):
            try:
                return Library(library(dtype_name, level, source=source), level)
            except TopThetaBackendError as error:
                failure = error
        elif kept := _any_kept(_read_unit(dtype_name, level, source), cache_folder()):
            return Library(kept, level)
    assert failure is not None
    raise failure


def library(dtype_name: str, level: str, *, source: Path = SOURCE) -> Path:
    """Find the kept shared library of one dtype and level, or build it now.

    Where nothing can be built, take what another compiler built of the same sources with the same flags.

    Args:
        dtype_name: "float32", "float16" or "bfloat16".
        level: a level that this machine runs.
        source: the C++ unit; the files beside it that it includes belong to it.

    Returns:
        The path of a whole library that only this user, or root, can have written.

    Raises:
        TopThetaBackendError: it cannot be had; the message says why and what to type.
        TopThetaValueError: there is no such level.
    """
    unit, folder = _read_unit(dtype_name, level, source), cache_folder()
    try:
        compiler = find_compiler()
        return cache.checked_library(unit.entry(folder, compiler)) or _build(unit, compiler, folder)
    except TopThetaBackendError:
        kept = _any_kept(unit, folder)
        if kept is None:
            raise
        return kept


def kept_library(dtype_name: str, compiler: Compiler | None, *, source: Path = SOURCE) -> Library | None:
    """Find what `best_library` would give without building. Return None if it would build or fail.

    Args:
        dtype_name: "float32", "float16" or "bfloat16".
        compiler: the one that would build; None if there is none, so that every compiler's library serves.
        source: the C++ unit; the files beside it that it includes belong to it.

    Raises:
        TopThetaBackendError: this machine runs no level, or the cache may not be used.
        TopThetaValueError: TOPTHETA_CPU_LEVEL names no level.
    """
    folder = cache_folder()
    for level in instruction_sets.levels():
        unit = _read_unit(dtype_name, level, source)
        kept = cache.checked_library(unit.entry(folder, compiler)) if compiler else _any_kept(unit, folder)
        if kept:
            return Library(kept, level)
    return None


def _read_unit(dtype_name: str, level: str, source: Path) -> _Unit:
    found = instruction_sets.check_level(level)
    try:
        return _Unit(dtype_name, found, source.name, _included(source))
    except OSError as error:
        got = f"{error.strerror} at {error.filename}"
        raise TopThetaBackendError("CPU kernel", "its sources", got, "install toptheta_npu again") from error


def _included(source: Path) -> dict[str, bytes]:
    """Read a unit and, by name, the files beside it that it includes."""
    files: dict[str, bytes] = {}
    waiting = [source.name]
    while waiting:
        name = waiting.pop()
        if name not in files:
            files[name] = source.with_name(name).read_bytes()
            waiting += [found.decode() for found in _INCLUDE.findall(files[name])]
    return files


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _any_kept(unit: _Unit, folder: Path) -> Path | None:
    return next(filter(None, map(cache.checked_library, unit.entries(folder))), None)


def _build(unit: _Unit, compiler: Compiler, folder: Path) -> Path:
    entry = unit.entry(folder, compiler)
    with cache.typed_errors(folder):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with cache.locked(folder):
            if found := cache.checked_library(entry):
                return found  # of another process, which was waited for
            name = f"{unit.dtype_name} ({unit.level.name})"
            _logger.info("building the CPU kernel for %s with %s; it is kept in %s", name, compiler, folder)
            with unfinished_folder(folder) as unfinished:
                cache.put_in_place(_compile(unit, compiler, unfinished), entry)
            if found := cache.checked_library(entry):
                return found
    raise TopThetaBackendError(
        "cache", f"what was just written to {entry}", "something else", f"name another folder in {cache.VARIABLE}"
    )


def _compile(unit: _Unit, compiler: Compiler, unfinished: Path) -> Path:
    """Compile a unit into a finished entry below ``unfinished``."""
    for file, content in unit.sources.items():
        (unfinished / file).write_bytes(content)
    path = unfinished / "entry" / cache.LIBRARY
    path.parent.mkdir(mode=0o755)
    command = [*compiler.command, *unit.flags, unit.main, "-o", str(path)]
    try:
        run_compiler(command, seconds=_BUILD_SECONDS, folder=unfinished)
    except CompilerFailure as failure:
        raise _as_backend_error(failure, unit, compiler, unfinished.parent) from failure
    if not path.is_file():
        raise TopThetaBackendError("compiler", "one that writes a library", f"{compiler}, which wrote none", INSTALL)
    return cache.finish(path)


def _as_backend_error(failure: CompilerFailure, unit: _Unit, compiler: Compiler, folder: Path) -> TopThetaBackendError:
    if failure.no_room:
        return cache.no_room(failure.no_room, folder)
    got = f"{compiler}, which {failure.summary}"
    if _UNKNOWN_LEVEL.search(failure.output):
        remedy = f"install a newer one (g++ 10 knows every level), or set {instruction_sets.VARIABLE} to another level"
        return _LevelUnknown("compiler", f"one that knows {unit.level.name}", got, remedy)
    return TopThetaBackendError("CPU kernel", "it to compile", got, f"{INSTALL}, or name another compiler in CXX")


def main() -> None:
    """Run the command line of this module."""
    argparse.ArgumentParser(prog="python -m toptheta_npu.cpu.build", description=__doc__).parse_args()
    try:
        for dtype_name in ELEMENTS:
            print(f"{dtype_name}: {best_library(dtype_name).path}")
            best_library(dtype_name, source=SERVING_SOURCE)
    except TopThetaError as error:
        sys.exit(f"build: {error}")


if __name__ == "__main__":
    main()
