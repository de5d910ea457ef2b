"""What the tests of builds share."""

from __future__ import annotations

import shutil

import pytest

from toptheta_npu.cpu import instruction_sets


def best_level() -> str:
    """Of this machine, for a test of a build."""
    found = instruction_sets.available()
    if not found or shutil.which("g++") is None:
        pytest.skip("the CPU kernel cannot be built here")
    return found[0]
