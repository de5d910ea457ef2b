"""Compiles the emulator's libraries, once per state of their inputs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from ..cann import CompileError
from .settings import CACHE

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", "-fno-gnu-unique")


def cached_folder(name: str, inputs: Iterable[str | Path], build: Callable[[Path], None]) -> Path:
    """A folder that `build` has filled for exactly these inputs: texts, and files by their contents.

    Several processes may ask at once; one of them builds.

    Raises:
        CompileError: the compiler refuses a source.
    """
    folder = CACHE / f"{name}-{_digest(inputs)}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        if not folder.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix="new-", dir=CACHE))
            try:
                build(scratch)
                scratch.chmod(0o755)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def link(target: Path, sources: Iterable[Path], options: Sequence[str], flags: Sequence[str] = FLAGS) -> None:
    """Compile C++ sources into the shared library `target`, whose soname is its file name."""
    run_compiler(
        [compiler(), *flags, "-shared", f"-Wl,-soname,{target.name}", "-o", str(target), *map(str, sources), *options]
    )


def compile_objects(sources: Iterable[Path], folder: Path, options: Sequence[str]) -> list[Path]:
    """Compile C++ sources into object files in `folder`."""
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        run_compiler([compiler(), *FLAGS, *options, "-c", str(source), "-o", str(objects[-1])])
    return objects


def run_compiler(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(command, done.stdout + done.stderr)


def compiler() -> str:
    """The C++ compiler: $CXX, or g++."""
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise FileNotFoundError(f"compiler: expected an installed C++ compiler, got {name!r}; install g++")
    return name


@lru_cache
def compiler_version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout


def _digest(inputs: Iterable[str | Path]) -> str:
    digest = hashlib.sha256(compiler_version().encode())
    for item in inputs:
        digest.update(b"\0" + str(item).encode())
        if isinstance(item, Path):
            digest.update(b"\0" + item.read_bytes())
    return digest.hexdigest()[:24]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
