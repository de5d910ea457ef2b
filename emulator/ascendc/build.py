"""Compiles a kernel source together with the machine into a shared library, once per state of all its inputs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..compile_cache import (
    CACHE,
    CompileError,
    cached_folder,
    compiler_version,
    default_compiler,
    digest,
    locked,
    run_compiler,
    scratch_folder,
)

_HERE = Path(__file__).resolve().parent
_MACHINE = _HERE / "machine"
_INCLUDE = _HERE / "include"
_INDEX = CACHE / "index"
_BASE_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-ffp-contract=off", "-Wall", "-Wextra")
_SANITIZE_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g")


@dataclass(frozen=True)
class Kernel:
    """A kernel source and how to compile it.

    Attributes:
        source: the C++ file; it includes "kernel_operator.h".
        entry: name of the `extern "C"` function; the file's stem if not given.
        include_dirs: searched after the host model's own headers.
        defines: preprocessor macros, name to value.
        flags: further compiler options.
        compiler: g++ or clang++; $CXX if not given.
        sanitize: with AddressSanitizer and UndefinedBehaviorSanitizer; see `sanitizer_environment`.
        refuse_infinities: an infinity that a float instruction compares, subtracts, reduces to a maximum or
            exponentiates is a finding: no document says what a board makes of one. Runs take longer.
    """

    source: Path | str
    entry: str | None = None
    include_dirs: Sequence[Path | str] = ()
    defines: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    compiler: str = field(default_factory=default_compiler)
    sanitize: bool = False
    refuse_infinities: bool = False

    @property
    def path(self) -> Path:
        return Path(self.source).resolve()

    @property
    def entry_name(self) -> str:
        return self.entry or self.path.stem


def build_kernel(kernel: Kernel) -> Path:
    """Compile the shared library of `kernel`, unless nothing has changed since it was compiled.

    Several processes may build at once.

    Raises:
        CompileError: the compiler refuses the kernel.
        FileNotFoundError: there is no such source or compiler.
    """
    if not kernel.path.is_file():
        raise FileNotFoundError(f"source: expected a C++ file, but there is none at {kernel.path}")
    machine = _build_machine(kernel.compiler, kernel.sanitize)
    command = [*_compile_command(kernel), "-shared", "-Wl,-Bsymbolic", str(kernel.path)]
    command += ["-Wl,--whole-archive", str(machine), "-Wl,--no-whole-archive"]
    key = digest([*command, compiler_version(kernel.compiler)])
    with locked(f"kernel-{key}"):
        library = _cached(key)
        return library if library is not None else _compile(command, key)


def sanitizer_environment(compiler: str = "g++") -> dict[str, str]:
    """List environment variables under which a Python process can load a library built with `sanitize=True`."""
    asan = "libclang_rt.asan-x86_64.so" if "clang" in compiler else "libasan.so"
    # the runtime wraps exceptions, so it has to find the C++ library when it starts
    return {
        "LD_PRELOAD": f"{_runtime_library(compiler, asan)} {_runtime_library(compiler, 'libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def _runtime_library(compiler: str, name: str) -> str:
    command = [compiler, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _compile_command(kernel: Kernel) -> list[str]:
    command = _compiler_command(kernel.compiler, kernel.sanitize)
    command += [f"-D{name}={value}" if value else f"-D{name}" for name, value in kernel.defines.items()]
    if kernel.refuse_infinities:
        command.append("-DASCENDC_HOST_REFUSE_INFINITIES")
    command += [f"-I{path}" for path in (_INCLUDE, _HERE, *kernel.include_dirs)]
    return [*command, *kernel.flags]


def _compiler_command(compiler: str, sanitize: bool) -> list[str]:
    command = [compiler, *_BASE_FLAGS]
    if "clang" not in compiler:
        command.append("-fno-gnu-unique")  # otherwise two kernels in one process share their inline variables
    elif sanitize:
        command.append("-shared-libasan")
    return [*command, *_SANITIZE_FLAGS] if sanitize else command


def _build_machine(compiler: str, sanitize: bool) -> Path:
    sources = sorted(_MACHINE.glob("*.cpp"))
    command = _compiler_command(compiler, sanitize)
    inputs: list[str | Path] = [*command, compiler_version(compiler), *sorted(_MACHINE.iterdir())]

    def build(folder: Path) -> None:
        objects = [folder / f"{source.stem}.o" for source in sources]
        commands = [[*command, "-c", str(source), "-o", str(o)] for source, o in zip(sources, objects, strict=True)]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            list(pool.map(run_compiler, commands))
        run_compiler(["ar", "rcs", str(folder / "libmachine.a"), *map(str, objects)])
        for path in objects:
            path.unlink()

    return cached_folder("machine", inputs, build) / "libmachine.a"


def _compile(command: list[str], key: str) -> Path:
    for _ in range(3):
        with scratch_folder() as scratch:
            started = time.time_ns()
            rule = scratch / "kernel.d"
            run_compiler([*command, "-o", str(scratch / "kernel.so"), "-MD", "-MF", str(rule)])
            dependencies = _parse_dependencies(rule.read_text())
            if any(path.stat().st_mtime_ns >= started for path in dependencies):
                continue  # edited while it was compiled: nobody knows which state the library has
            _write_index(key, dependencies)
            folder = _folder(key, dependencies)
            if not folder.exists():
                scratch.rename(folder)
            return folder / "kernel.so"
    raise CompileError(command, "its sources kept changing while it was compiled")


def _cached(key: str) -> Path | None:
    index = _INDEX / f"{key}.json"
    if not index.is_file():
        return None
    dependencies = [Path(path) for path in json.loads(index.read_text())]
    if not all(path.is_file() for path in dependencies):
        return None
    library = _folder(key, dependencies) / "kernel.so"
    return library if library.is_file() else None


def _folder(key: str, dependencies: Sequence[Path]) -> Path:
    return CACHE / f"kernel-{digest([key, *dependencies])}"


def _write_index(key: str, dependencies: Sequence[Path]) -> None:
    _INDEX.mkdir(parents=True, exist_ok=True)
    scratch = _INDEX / f"{key}.new"
    scratch.write_text(json.dumps([str(path) for path in dependencies]))
    scratch.replace(_INDEX / f"{key}.json")


def _parse_dependencies(makefile: str) -> list[Path]:
    """Read the files of a `-MD` rule, without the toolchain's own and the archive of the machine."""
    names = makefile.replace("\\\n", " ").split(":", 1)[1].replace("\\ ", "\0").split()
    paths = {Path(name.replace("\0", " ")).resolve() for name in names}
    return sorted(path for path in paths if not path.is_relative_to("/usr"))
