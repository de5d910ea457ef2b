"""What the tests of builds share."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from toptheta_npu.cpu import instruction_sets

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away and become another user")


def best_level() -> str:
    """Of this machine, for a test of a build."""
    found = instruction_sets.available()
    if not found or shutil.which("g++") is None:
        pytest.skip("the CPU kernel cannot be built here")
    return found[0]


def answer(library: Path) -> int:
    """What the library of the small source gives; from a copy, since a process loads a path once."""
    copy = library.with_name(f"copy-{os.urandom(4).hex()}.so")
    shutil.copy(library, copy)
    try:
        return int(ctypes.CDLL(str(copy)).answer())
    finally:
        copy.unlink()


def entries(folder: Path) -> list[Path]:
    """What is in a cache, without its lock."""
    return sorted(path for path in folder.iterdir() if path.name != ".lock")
