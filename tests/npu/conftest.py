"""These tests need devices of torch_npu: emulated ones, or real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import has_npu

_HERE = Path(__file__).resolve().parent
_REASON = "no NPU here; for emulated ones: python -m emulator run python -m pytest tests/npu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.npu)
            if not has_npu():
                item.add_marker(pytest.mark.skip(reason=_REASON))


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs Python code in a process of its own; returns what it printed. Keywords are environment variables."""

    def run(code: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | variables, cwd=_HERE.parents[1], capture_output=True,
            text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
