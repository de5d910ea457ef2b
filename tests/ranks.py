"""Processes that are the ranks of a group, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_ranks(module: str, folder: Path, returncodes: list[int], seconds: int) -> None:
    """Runs ``python -m module RANK FOLDER`` for every rank; each ends with its code of ``returncodes``, in time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(folder)], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(len(returncodes))
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=seconds)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == returncodes, outputs
