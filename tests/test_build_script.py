"""build.sh: the options of Ascend's operator repositories, and what each of them runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_OPERATOR = "top_theta_incremental_attention"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script beside an op_host/build.sh that prints its arguments."""
    (tmp_path / "op_host").mkdir()
    (tmp_path / "op_host" / "build.sh").write_text('printf "op_host/build.sh %s\\n" "$*"\n')
    return Path(shutil.copy(_ROOT / "build.sh", tmp_path))


def _run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        ([], ""),
        (["--soc=ascend910b", "-j3", "--install-path=/opp dir"], "--soc=ascend910b --jobs=3 --install-path=/opp dir"),
        ([f"--ops={_OPERATOR}", "--vendor_name=toptheta"], ""),
    ],
)
def test_a_package_is_built_by_the_operators_script(script: Path, options: list[str], passed: str) -> None:
    done = _run(script, "--pkg", *options)
    assert (done.returncode, done.stdout) == (0, f"op_host/build.sh {passed}\n"), done.stderr


def test_unit_tests_are_those_of_the_operator(script: Path, tmp_path: Path) -> None:
    (tmp_path / "make").write_text('#!/bin/sh\necho make "$@"\n')
    (tmp_path / "make").chmod(0o755)
    done = _run(script, "-u", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.stdout == f"make -C {tmp_path} test-operator\n"
    assert re.search(r"^test-operator: ", (_ROOT / "Makefile").read_text(), re.MULTILINE)


def test_what_a_build_has_left_is_removed(script: Path, tmp_path: Path) -> None:
    (tmp_path / "build" / "op_package").mkdir(parents=True)
    (tmp_path / "build" / "kept").mkdir()
    assert _run(script, "--make_clean").returncode == 0
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected --pkg, -u or --make_clean, got none of them"),
        (["--pkg", "-u"], "-u: excludes --pkg; leave one of them out"),
        (["--pkg", "--ops=add"], f"--ops: expected {_OPERATOR}, got add"),
        (["--pkg", "--vendor_name=custom"], "--vendor_name: expected toptheta, got custom"),
        (["--pkg", "-j0"], "-j0: expected one of the options above"),
        (["-u", "--soc=ascend910b"], "--soc=ascend910b: needs --pkg; leave it out, or use that"),
    ],
)
def test_what_is_wrong_is_said(script: Path, arguments: list[str], said: str) -> None:
    done = _run(script, *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"build.sh: {said}"
    assert done.stdout == ""


def test_help_names_every_option(script: Path) -> None:
    done = _run(script, "--help")
    assert done.returncode == 0
    for option in ("--pkg", "--soc", "--ops", "--vendor_name", "-j", "--install-path", "-u", "--make_clean", "--help"):
        assert re.search(rf"^  {option}", done.stdout, re.MULTILINE), option
