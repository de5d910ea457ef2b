"""Runs at the start of every Python in the emulator's environment."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _run_other_sitecustomize() -> None:
    """Run the module of this name that Python would have imported without this one."""
    here = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if Path(entry).resolve() != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


import_module("emulator_import_hook").install()
_run_other_sitecustomize()
