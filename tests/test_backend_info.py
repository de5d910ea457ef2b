"""Telling what the operators run and what is missing, on a machine without an NPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import toptheta_npu
from tests.op_packages import forget_choices, make_package
from toptheta_npu.cli import app
from toptheta_npu.npu import environment, info
from toptheta_npu.npu.environment import CUSTOM_PATH


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_choices(monkeypatch)


def test_backend_info_with_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    found = toptheta_npu.backend_info()
    by_name = {finding.name: finding for finding in found.findings}
    missing = [name for name, finding in by_name.items() if not finding.good]
    assert missing == ["torch_npu", "CANN", "op package", "adapter"]
    assert (found.usable, found.backend, found.loaded) == (False, "npu", None)
    assert by_name["op package"].remedy == "build and install it with: op_host/build.sh --install-path=DIR"
    assert json.loads(found.to_json())["findings"][5]["name"] == "op package"
    assert "torch_npu" not in sys.modules


def test_backend_info_with_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = make_package(tmp_path)
    monkeypatch.setenv(CUSTOM_PATH, str(vendor))
    by_name = {finding.name: finding for finding in toptheta_npu.backend_info().findings}
    assert by_name["op package"].found == f"{vendor}, from {CUSTOM_PATH}, of the user {os.getuid()}"
    library = vendor / "torch" / "libtoptheta_npu_adapter.so"
    assert by_name["adapter"].found == f"{library}, for torch {torch.__version__}"
    monkeypatch.setattr(environment, "PREPARED", environment.Prepared(vendor, too_late=True))
    late = {finding.name: finding for finding in toptheta_npu.backend_info().findings}["op package"]
    assert late.remedy == (
        f"import toptheta_npu before torch, or: export {CUSTOM_PATH}={vendor}${{{CUSTOM_PATH}:+:${CUSTOM_PATH}}}"
    )


def test_the_version_of_cann_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x86_64-linux").mkdir()
    (tmp_path / "libascendcl.so").touch()
    (tmp_path / "x86_64-linux" / "ascend_toolkit_install.info").write_text("package_name=toolkit\nversion=8.1.RC1\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    (cann,) = [item for item in toptheta_npu.backend_info().findings if item.name == "CANN"]
    assert (cann.found, cann.problem) == (f"{tmp_path}, version 8.1.RC1", None)


def test_a_device_that_answers_shows_that_there_is_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(info, "_torch_npu", lambda: info.Finding("torch_npu", "2.13.0"))
    monkeypatch.setattr(info, "_devices", lambda: info.Finding("devices", "1 x Ascend910B1"))
    by_name = {finding.name: finding for finding in toptheta_npu.backend_info(probe=True).findings}
    assert by_name["CANN"] == info.Finding("CANN", "where torch_npu finds it")


def test_doctor_says_what_is_missing_and_what_to_type() -> None:
    done = CliRunner().invoke(app, ["doctor", "--no-probe"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "What works here"
    assert any(line.startswith("missing op package") for line in lines)
    assert "        to do: build and install it with: op_host/build.sh --install-path=DIR" in lines
    assert lines[-1].startswith("NPU tensors raise an error here. ")


def test_doctor_under_the_fallback() -> None:
    with toptheta_npu.use_backend("fallback"):
        done = CliRunner().invoke(app, ["doctor", "--no-probe"])
    assert done.stdout.splitlines()[-1] == (
        "The backend is 'fallback': NPU tensors run the PyTorch fallback on the NPU."
    )


def test_doctor_as_json() -> None:
    done = CliRunner().invoke(app, ["doctor", "--no-probe", "--json"])
    report = json.loads(done.stdout)
    assert (report["usable"], report["backend"]) == (False, "npu")
    assert {finding["name"] for finding in report["findings"]} >= {"torch", "torch_npu", "CANN", "op package"}


def test_probe_of_a_torch_npu_that_dies_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_npu.py").write_text("import os\nos.abort()\n")
    (tmp_path / "torch_npu-2.13.0.dist-info").mkdir()
    release = ".".join(torch.__version__.split(".")[:2])
    metadata = f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {release}.0\n"
    (tmp_path / "torch_npu-2.13.0.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    monkeypatch.syspath_prepend(tmp_path)
    (devices,) = [item for item in toptheta_npu.backend_info(probe=True).findings if item.name == "devices"]
    assert devices.problem is not None
    assert devices.problem.startswith("torch_npu does not start: ")
    assert "torch_npu" not in sys.modules
