"""Emulated devices in a Python that runs already, such as a notebook."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from .environment import HOOK, REMOVED, emulator_variables, in_emulator
from .libraries import build_libraries
from .op_package import default_op_package
from .settings import TORCH_NPU_PLACE
from .symbols import LIBRARIES
from .torch_npu import SetupError, install_torch_npu


def load() -> ModuleType:
    """Import torch_npu over emulated devices, and return it. Set up the emulator where that has not been done.

    Raises:
        SetupError: torch_npu has been imported already without the emulator.
        CompileError: the compiler refuses a source.
    """
    if not in_emulator():
        if "torch_npu" in sys.modules:
            raise SetupError("load: expected a Python that has not imported torch_npu, got one that has; call it first")
        _enter(_set_up())
    return importlib.import_module("torch_npu")


def _set_up() -> Path:
    install_torch_npu()
    libraries = build_libraries()
    for name in REMOVED:
        os.environ.pop(name, None)
    os.environ.update(emulator_variables(libraries, default_op_package()))
    return libraries


def _enter(libraries: Path) -> None:
    """Do in this process what the environment does for new ones."""
    sys.path[:0] = [str(HOOK), str(TORCH_NPU_PLACE)]
    importlib.import_module("emulator_import_hook").install()
    # whoever needs one of them later, by its soname, finds the one that is loaded
    for name in (*LIBRARIES, "libopapi.so"):
        ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
