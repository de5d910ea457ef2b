"""The command ``toptheta`` while PyTorch is loaded, which takes seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "import toptheta_command; toptheta_command.main()"]


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which importing torch does not end."""
    (tmp_path / "torch.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}


def test_an_interrupt_while_torch_is_loaded_is_one_line(slow: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "inspect", "file"], env=slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert (out, error, process.returncode) == ("", "interrupted.\n", 130)


def test_a_terminal_is_told_at_once_that_something_happens(slow: dict[str, str]) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, "inspect", "file"], env=slow, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    assert os.read(ours, 100) == b"loading PyTorch ...\r"
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)
    rest = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(ours, 100):
            rest += part
    os.close(ours)
    assert rest == b" " * 19 + b"\rinterrupted.\r\n"


def test_the_command_is_the_one_of_the_package() -> None:
    done = subprocess.run(
        [*COMMAND, "inspect", "none"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: none: expected a threshold table, got no such file")
