"""Emulated devices in a Python that runs already, such as a notebook."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from .environment import HOOK, REMOVED, emulator_variables, in_emulator
from .libraries import build_libraries
from .op_package import default_op_package
from .project import find_project
from .settings import TORCH_NPU_PLACE
from .symbols import LIBRARIES
from .torch_npu import SetupError, install_torch_npu


def load(project: Path | str | None = None, **settings: object) -> ModuleType:
    """Import torch_npu over emulated devices, and return it. Set up the emulator where that has not been done.

    Args:
        project: the file of an operator package; None takes emulator.json of the current folder, if it has one.
        **settings: as the options of `python -m emulator run`, such as ``devices=2``.

    Raises:
        SetupError: torch_npu has been imported already without the emulator, or settings come to a running one.
        ProjectError: a project file that cannot be used.
        CompileError: the compiler refuses a source.
    """
    if in_emulator():
        if settings:
            raise SetupError("load: expected no settings in a process that has its own, give them to the first call")
    else:
        if "torch_npu" in sys.modules:
            raise SetupError("load: expected a Python that has not imported torch_npu, got one that has; call it first")
        _enter(_set_up(None if project is None else Path(project), settings))
    return importlib.import_module("torch_npu")


def _set_up(file: Path | None, settings: Mapping[str, object]) -> Path:
    project = find_project(file)
    install_torch_npu()
    libraries = build_libraries()
    for name in REMOVED:
        os.environ.pop(name, None)
    package = None if project is None else default_op_package(project)
    os.environ.update(emulator_variables(libraries, package, settings))
    return libraries


def _enter(libraries: Path) -> None:
    """Do in this process what the environment does for new ones."""
    sys.path[:0] = [str(HOOK), str(TORCH_NPU_PLACE)]
    importlib.import_module("emulator_import_hook").install()
    # whoever needs one of them later, by its soname, finds the one that is loaded
    for name in (*LIBRARIES, "libopapi.so"):
        ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
