"""How the emulator's own libraries are compiled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..compile_cache import default_compiler, run_compiler

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", "-fno-gnu-unique")


def link(target: Path, sources: Iterable[Path], options: Sequence[str], flags: Sequence[str] = FLAGS) -> None:
    """Compile C++ sources into the shared library `target`, whose soname is its file name."""
    how = [default_compiler(), *flags, "-shared", f"-Wl,-soname,{target.name}", "-o", str(target)]
    run_compiler([*how, *map(str, sources), *options])


def compile_objects(sources: Iterable[Path], folder: Path, options: Sequence[str]) -> list[Path]:
    """Compile C++ sources into object files in `folder`."""
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        run_compiler([default_compiler(), *FLAGS, *options, "-c", str(source), "-o", str(objects[-1])])
    return objects
