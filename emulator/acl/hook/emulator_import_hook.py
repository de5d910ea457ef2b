"""Completes `import torch_npu` in the emulator's environment. Standard library only: every Python start imports it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class TorchNpuFinder(MetaPathFinder):
    """Finds torch_npu as usual, and sends aten's operators to the CPU when it has been imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == "torch_npu" else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_reroute(module: ModuleType) -> None:
            with redirect_stdout(sys.stderr):  # a program's own output stays free of torch_npu's notes on CANN
                execute(module)
            settings = dict(part.split("=", 1) for part in os.environ["ACL_EMULATOR"].split(";"))
            library = Path(settings["libraries"]) / "libacl_emulator_aten.so"
            ctypes.CDLL(str(library)).acl_emulator_reroute_aten()

        setattr(spec.loader, "exec_module", execute_and_reroute)  # noqa: B010 (a method)
        return spec


def install() -> None:
    """Put the hook before all other finders."""
    sys.meta_path.insert(0, TorchNpuFinder())
