"""Compiles a few C++ files into one shared library, once per state of all files it may depend on."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_CACHE = REPOSITORY / "build" / "emulator" / "cann"
_FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


class CompileError(RuntimeError):
    """A source that the compiler refuses; the message has the command and what the compiler printed."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        super().__init__(f"{' '.join(command)}\n{output}")


def build_library(name: str, sources: Sequence[Path], include_dirs: Sequence[Path], compiler: str = "g++") -> Path:
    """The shared library of `sources`, compiled now unless neither they nor a header near them has changed.

    Headers are looked for in ``include_dirs``, in the folders of the sources and in op_kernel. Several processes
    may build at once.

    Raises:
        CompileError: the compiler refuses a source.
        FileNotFoundError: there is no such compiler.
    """
    if shutil.which(compiler) is None:
        raise FileNotFoundError(f"compiler: expected an installed C++ compiler, got {compiler!r}; install g++")
    command = [compiler, *_FLAGS, *(f"-I{path}" for path in include_dirs), *map(str, sources)]
    library = _CACHE / f"{name}-{_digest(command, _inputs(sources, include_dirs))}.so"
    if not library.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            target = Path(scratch) / library.name
            done = subprocess.run([*command, "-o", str(target)], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CompileError(command, done.stdout + done.stderr)
            os.replace(target, library)
    return library


def _inputs(sources: Sequence[Path], include_dirs: Sequence[Path]) -> list[Path]:
    folders = {*include_dirs, *(source.parent for source in sources), REPOSITORY / "op_kernel"}
    headers = {header for folder in folders for header in folder.rglob("*.h")}
    return sorted({*sources, *headers})


def _digest(command: Sequence[str], files: Sequence[Path]) -> str:
    digest = hashlib.sha256("\0".join([*command, _version(command[0])]).encode())
    for path in files:
        digest.update(f"\0{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:24]


@lru_cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
