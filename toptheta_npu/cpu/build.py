"""Builds the CPU kernel on the machine that runs it: ``python -m toptheta_npu.cpu.build``, or the first call.

Needs a C++17 compiler and nothing of torch. One shared library is built for one dtype and one level of
`instruction_sets`, and kept under a name that says what it was made from: sources and flags.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .._compiler import INSTALL, Compiler, CompilerFailure, find_compiler, run_compiler
from .._files import move_into_place
from .._libraries import is_whole, seal
from .._streams import standard_streams
from ..errors import TopThetaBackendError, TopThetaError
from . import instruction_sets
from .cache import VARIABLE, cache_folder
from .instruction_sets import VARIABLE as LEVEL

SOURCE = Path(__file__).with_name("source") / "incremental_attention.cpp"
#: The kernel's names of the dtypes that it is built for.
ELEMENTS = {"float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16"}
# nobody reads errno or the exception flags of floating point, which would keep loops from becoming vector code
_MATHS = ("-fno-math-errno", "-fno-trapping-math")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", *_MATHS, "-Wall", "-Wextra")
_logger = logging.getLogger("toptheta_npu")


@dataclass(frozen=True)
class _Unit:
    """What is compiled, and how."""

    dtype_name: str
    level: instruction_sets.Level

    @property
    def flags(self) -> list[str]:
        return [*_FLAGS, *self.level.compiler_flags, f"-DTOPTHETA_ELEMENT={ELEMENTS[self.dtype_name]}"]

    @property
    def path(self) -> Path:
        """Where its library is kept: another one for other sources or flags."""
        digest = hashlib.sha256("\0".join(["sealed", *self.flags]).encode())
        for file in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))):
            digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
        return cache_folder() / f"{self.dtype_name}-{self.level.name}-{digest.hexdigest()[:16]}.so"


def library(dtype_name: str) -> Path:
    """Find the kept shared library for a dtype and the level of this machine, or build it now.

    Args:
        dtype_name: "float32", "float16" or "bfloat16".

    Raises:
        TopThetaBackendError: it cannot be had; the message says why and what to type.
        TopThetaValueError: TOPTHETA_CPU_LEVEL names no level.
    """
    unit = _Unit(dtype_name, instruction_sets.chosen())
    path = unit.path
    if not path.is_file():
        return _build(unit)
    if not is_whole(path):
        _logger.warning("the CPU kernel kept as %s is damaged; it is built again", path)
        return _build(unit)
    return path


def kept_library(dtype_name: str) -> Path | None:
    """Find the same library if it is kept and undamaged. Return None otherwise, and build nothing.

    Raises:
        As `library`.
    """
    path = _Unit(dtype_name, instruction_sets.chosen()).path
    return path if is_whole(path) else None


def _build(unit: _Unit) -> Path:
    compiler, path = find_compiler(), unit.path
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a") as lock:
            with suppress(ImportError, OSError):  # without locks, several processes build the same
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            if is_whole(path):
                return path  # of another process, which was waited for
            name = f"{unit.dtype_name} ({unit.level.name})"
            _logger.info("building the CPU kernel for %s with %s; it is kept in %s", name, compiler, folder)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as unfinished:
                built = _compile(unit, compiler, Path(unfinished) / path.name)
                seal(built)
                move_into_place(built, path)
    except OSError as error:
        got = f"{error.strerror or error} at {error.filename or folder}"
        remedy = f"free some space there, or name another folder in {VARIABLE}"
        raise TopThetaBackendError("cache", "a folder that can be written", got, remedy) from error
    return path


def _compile(unit: _Unit, compiler: Compiler, built: Path) -> Path:
    try:
        run_compiler([*compiler.command, *unit.flags, str(SOURCE), "-o", str(built)])
    except CompilerFailure as failure:
        full = failure.remedy(cache_folder())
        remedy = full or f"{INSTALL}, or name another compiler in CXX or a lesser level in {LEVEL}"
        got = f"{compiler}, which {failure.summary}"
        raise TopThetaBackendError("CPU kernel", "it to compile", got, remedy) from failure
    return built


def main() -> None:
    """Run the command line of this module."""
    argparse.ArgumentParser(prog="python -m toptheta_npu.cpu.build", description=__doc__).parse_args()
    with standard_streams():
        try:
            for dtype_name in ELEMENTS:
                print(f"{dtype_name}: {library(dtype_name)}")
        except TopThetaError as error:
            sys.exit(f"build: {error}")


if __name__ == "__main__":
    main()
