"""``toptheta doctor`` and ``toptheta --version`` on a machine without an NPU."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import toptheta_npu
from tests.helpers import has_npu
from toptheta_npu.cli import app
from toptheta_npu.npu.info import Finding

pytestmark = pytest.mark.skipif(has_npu(), reason="there is an NPU")
diagnosis = sys.modules["toptheta_npu.cli.doctor"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--no-probe", *arguments])


def test_what_works_comes_first() -> None:
    lines = run().stdout.splitlines()
    assert lines[:2] == ["What works here", f"yes     CPU           PyTorch fallback, torch {torch.__version__}"]
    assert lines[2].startswith("yes     transformers  ")
    assert lines.index("What an Ascend NPU needs") > 3


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--strict"], 1), (["--json"], 0)])
def test_exit_status(arguments: list[str], status: int) -> None:
    assert run(*arguments).exit_code == status


def test_a_cpu_that_gives_wrong_results_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toptheta_npu, "incremental_attention", lambda query, *_: 2 * query)
    done = run()
    assert done.exit_code == 1
    assert "no      CPU           the PyTorch fallback gives a wrong result" in done.stdout
    assert done.stdout.endswith("The operators do not run here.\n")


def test_transformers_of_another_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.57.6")
    assert diagnosis._transformers() == Finding(
        "transformers", "4.57.6", "made for transformers 5", "pip install 'toptheta_npu[hf]'"
    )


def test_json_has_both_parts() -> None:
    report = json.loads(run("--json").stdout)
    assert [finding["name"] for finding in report["here"]] == ["CPU", "transformers", "CUDA"]
    assert report["usable"] is False


def test_an_installed_package_names_no_page_of_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "source distribution" not in run().stdout
    monkeypatch.setattr(diagnosis, "_SOURCES", tmp_path)
    told = [line for line in run().stdout.splitlines() if "docs/" in line or "op_host/" in line]
    assert len(told) == 2
    for line in told:
        assert line.endswith("(in a clone or the source distribution of toptheta_npu)")


def test_version_without_importing_torch_npu() -> None:
    code = "import sys; sys.argv = ['toptheta', '--version']; import toptheta_npu.cli as c\ntry: c.main()\n"
    code += "finally: assert 'torch_npu' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"toptheta_npu {importlib.metadata.version('toptheta_npu')}"
    assert lines[1] == f"torch {importlib.metadata.version('torch')}"
    assert lines[2].startswith("torch_npu ")
    assert lines[3:] == ["backend npu"]
