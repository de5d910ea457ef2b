"""The Makefile: what is installed once, and when it is installed again."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def _make(folder: Path, *arguments: str) -> str:
    """Runs make with its environments in ``folder``, as if nobody had called make before. Returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", *arguments, f"VENV={folder}/venv", f"TRITON={folder}/triton"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=_ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_version_of_triton_is_installed_before_it_compiles(tmp_path: Path) -> None:
    def installed(*options: str) -> list[str]:
        return re.findall(r"--target \S+/triton/(\S+) triton==(\S+)", _make(tmp_path, "-n", "test-triton", *options))

    for name in ("venv", "triton/3.4.0", "triton/3.5.0", "triton/3.6.0"):
        (tmp_path / name).mkdir(parents=True)
    assert installed("TRITON_VERSIONS=3.4.0 3.5.0") == [("3.4.0", "3.4.0"), ("3.5.0", "3.5.0")]
    _make(tmp_path, "-t", "test-triton", "TRITON_VERSIONS=3.4.0 3.5.0")
    assert installed("TRITON_VERSIONS=3.4.0 3.5.0") == []
    assert installed("TRITON_VERSIONS=3.5.0 3.6.0") == [("3.6.0", "3.6.0")]
