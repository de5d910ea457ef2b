"""``toptheta verify`` as a user types it, where there is no NPU; tests/npu runs it over emulated ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cli.command import toptheta
from toptheta_npu.verify.points import POINTS

_WITHOUT_NPU = pytest.mark.skipif(hasattr(torch, "npu"), reason="there is an NPU")


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("verify", "--list") == 0
    shown = capsys.readouterr().out
    for point in POINTS:
        assert re.search(rf"^ *{point.name} +{re.escape(point.reading)} *$", shown, re.MULTILINE)


@_WITHOUT_NPU
def test_without_an_npu_the_error_names_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("verify") == 2
    assert re.sub(r"\s+", " ", capsys.readouterr().err).startswith(
        "error: toptheta verify: expected torch_npu and an Ascend NPU, got no torch_npu; see: toptheta doctor"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "mask"], "--only: expected the name of a check, got 'mask'; "),
        (["--output", "/no/such/folder/hour.json"], "--output: expected a file in an existing folder"),
        (["--output", "/"], "--output: expected the name of a file, got a folder at /"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("verify", *arguments) == 2
    assert message in re.sub(r"\s+", " ", capsys.readouterr().err)


_HANGS = """
import sys, time
from dataclasses import replace
from pathlib import Path
from importlib import import_module
from toptheta_npu.verify.points import POINTS

verify = import_module("toptheta_npu.cli.verify")
point = replace(POINTS[0], run=lambda device: time.sleep(60))
stored = {}
console = verify.make_console()
verify._run_checks(console, [point], 0.2, Path(sys.argv[1]), stored)
"""


def test_a_call_that_hangs_ends_the_command_with_what_is_known(tmp_path: Path) -> None:
    file = tmp_path / "hour.json"
    done = subprocess.run(
        [sys.executable, "-c", _HANGS, str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1, done.stderr
    assert "no answer within 0.2 s; the device hangs in this call" in done.stdout
    assert '"check": "mask-bits"' in file.read_text()
