"""What the emulator has to know of somebody's operator package: emulator.json in the folder of its sources."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cann import Operator

#: The file that the commands read where none is named.
PROJECT_FILE = Path("emulator.json")
_KEYS = {"vendor", "host", "kernel", "include_dirs", "build", "build_inputs"}


class ProjectError(ValueError):
    """A project file that cannot be used; names the key, what was expected, what came and the remedy."""


@dataclass(frozen=True)
class Project:
    """An operator package by its sources.

    Attributes:
        folder: where the file is.
        vendor: the name of the package's folder below vendors/.
        operator: its host side.
        kernel: the C++ file of the kernel, which the function of the kernel is named after.
        build: a command that makes what the package has beside the operator, run in `folder`. {python} stands for the
            Python that runs the emulator, {folder} for an empty folder, whose content goes into the package.
        build_inputs: files that the command reads; it runs again when one of them has changed.
    """

    folder: Path
    vendor: str
    operator: Operator
    kernel: Path
    build: tuple[str, ...] = ()
    build_inputs: tuple[Path, ...] = ()


def find_project(file: Path | None) -> Project | None:
    """Read the project file that was named, or that of the current folder; None if neither is there.

    Raises:
        ProjectError: the file cannot be used.
    """
    if file is None and not PROJECT_FILE.is_file():
        return None
    return read_project(file or PROJECT_FILE)


def read_project(file: Path) -> Project:
    """Read a project file; its paths are relative to its folder.

    Raises:
        ProjectError: no such file, a key that is missing or unknown, or a path that is not there.
    """
    if not file.is_file():
        raise ProjectError(f"{file}: expected a project file of the emulator, but there is none; see its README")
    folder = file.resolve().parent
    keys = _checked(file, _parse(file))
    paths = {name: _existing(file, name, folder, keys.get(name, [])) for name in ("include_dirs", "build_inputs")}
    (host,), (kernel,) = (_existing(file, name, folder, [keys[name]]) for name in ("host", "kernel"))
    return Project(
        folder, keys["vendor"], Operator(host, tuple(paths["include_dirs"])), kernel, tuple(keys.get("build", ())),
        tuple(paths["build_inputs"]),
    )  # fmt: skip


def _parse(file: Path) -> dict[str, Any]:
    try:
        keys = json.loads(file.read_text())
    except ValueError as cause:
        raise ProjectError(f"{file}: expected JSON, got something else ({cause})") from None
    if not isinstance(keys, dict):
        raise ProjectError(f"{file}: expected an object of JSON, got {type(keys).__name__}")
    return keys


def _checked(file: Path, keys: dict[str, Any]) -> Mapping[str, Any]:
    texts, lists = ("vendor", "host", "kernel"), ("include_dirs", "build", "build_inputs")
    for name in keys.keys() - _KEYS:
        raise ProjectError(f"{file}: expected the keys {', '.join(sorted(_KEYS))}, got {name!r}; take it out")
    for name in texts:
        if not isinstance(keys.get(name), str):
            raise ProjectError(f"{file}, {name}: expected a text, got {keys.get(name)!r}")
    for name in lists:
        value = keys.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ProjectError(f"{file}, {name}: expected a list of texts, got {value!r}")
    if not re.fullmatch(r"[\w-]+", keys["vendor"]):
        raise ProjectError(f"{file}, vendor: expected letters, digits, _ and -, got {keys['vendor']!r}")
    return keys


def _existing(file: Path, name: str, folder: Path, paths: list[str]) -> list[Path]:
    for path in paths:
        if not (folder / path).exists():
            raise ProjectError(f"{file}, {name}: expected a path from {folder}, but there is nothing at {path!r}")
    return [folder / path for path in paths]
