"""The host sources against the headers of an installed CANN toolkit: a type check, not a run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from emulator.acl.op_source import aclnn_header
from toptheta_host_model import OPERATOR

_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = sorted((_ROOT / "op_host").glob("*.cpp"))
_HOME = os.environ.get("ASCEND_HOME_PATH")
_NEEDED = "register/op_def_registry.h"


def _include_dirs(home: Path) -> list[Path]:
    """Where CANN 8 and 9 keep the framework and tiling headers."""
    roots = [home, *home.glob("*-linux")]
    folders = ("include", "include/external", "ascendc/include/highlevel_api")
    return [root / folder for root in roots for folder in folders if (root / folder).is_dir()]


needs_toolkit = pytest.mark.skipif(
    _HOME is None, reason="ASCEND_HOME_PATH is not set: no CANN headers to check against"
)


@needs_toolkit
@pytest.mark.parametrize("role", ["", "-DOP_TILING_LIB", "-DOP_PROTO_LIB"], ids=["generator", "tiling", "proto"])
@pytest.mark.parametrize("source", _SOURCES, ids=lambda source: source.stem)
def test_host_source_type_checks(source: Path, role: str) -> None:
    """As each of the libraries that CANN makes of it, with warnings as errors in our own code."""
    assert _HOME is not None
    folders = _include_dirs(Path(_HOME))
    assert any((folder / _NEEDED).is_file() for folder in folders), f"no {_NEEDED} below {_HOME}"
    _check(source, folders, *([role] if role else []))


@needs_toolkit
def test_the_example_of_a_caller_type_checks(tmp_path: Path) -> None:
    assert _HOME is not None
    signature = OPERATOR.aclnn_signature()
    (tmp_path / signature["header"]).write_text(aclnn_header(signature))
    example = _ROOT / "examples" / "test_aclnn_top_theta_incremental_attention.cpp"
    _check(example, [*_include_dirs(Path(_HOME)), tmp_path])


def _check(source: Path, folders: list[Path], *options: str) -> None:
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_USE_CXX11_ABI=0"]
    command += [argument for folder in folders for argument in ("-isystem", str(folder))]
    done = subprocess.run([*command, *options, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
