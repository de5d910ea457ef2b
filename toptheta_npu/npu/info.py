"""What there is to run the operators on an NPU, what is missing, and what to type."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

from .._findings import Finding, as_finding
from .._libraries import mapped_files
from ..errors import TopThetaBackendError
from . import environment, loading
from .environment import CUSTOM_PATH, Package

_PROBE_SECONDS = 120
#: Run in a process of its own: whatever CANN does there, it does not do here.
_PROBE = """
import json, sys
import torch, torch_npu
names = [torch.npu.get_device_name(index) for index in range(torch.npu.device_count())]
json.dump({"devices": names}, sys.stdout)
"""
_TORCH_NPU_MISSING = "install the torch_npu made for torch {torch}; see docs/ascend.md"
_CANN_MISSING = "run the set_env.sh of CANN, for example: source /usr/local/Ascend/ascend-toolkit/set_env.sh"


def findings(schemas: dict[str, str], *, probe: bool) -> list[Finding]:
    """Look for what the op package needs, in the order in which it is needed; see `toptheta_npu.backend_info`."""
    torch_npu, cann = _torch_npu(), _cann()
    found = [
        Finding("toptheta_npu", _version("toptheta_npu") or "not installed, run from its folder"),
        Finding("Python", f"{platform.python_version()} on {platform.machine()}"),
        Finding("torch", torch.__version__), torch_npu, cann, *_package_and_adapter(schemas),
    ]  # fmt: skip
    if probe:
        found.append(_devices() if torch_npu.good else Finding("devices", None, "not asked: torch_npu is missing"))
        if found[-1].good and not cann.good:  # torch_npu has found it, by a way that was not looked at
            found[found.index(cann)] = Finding("CANN", cann.found or "where torch_npu finds it")
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_npu() -> Finding:
    version = _version("torch_npu")
    remedy = _TORCH_NPU_MISSING.format(torch=torch.__version__)
    if version is None:
        return Finding("torch_npu", None, f"not installed in {sys.prefix}", remedy)
    if version.split(".")[:2] != torch.__version__.split(".")[:2]:
        return Finding("torch_npu", version, f"made for another torch than {torch.__version__}", remedy)
    return Finding("torch_npu", version)


def _cann() -> Finding:
    """Find the runtime library that torch_npu needs, where the loader will look for it."""
    home = os.environ.get("ASCEND_HOME_PATH")
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and os.path.exists(os.path.join(folder, "libascendcl.so")):
            return Finding("CANN", f"{home or folder}{_cann_version(home)}")
    if any("/libascendcl.so" in path for path in mapped_files()):
        return Finding("CANN", f"{home or 'its runtime'}{_cann_version(home)} (loaded)")
    problem = "libascendcl.so is in no folder of LD_LIBRARY_PATH"
    return Finding("CANN", home, problem, _CANN_MISSING)


def _cann_version(home: str | None) -> str:
    """Read the version that a toolkit notes, as ", version 8.1.RC1"; nothing if there is no note."""
    for note in sorted(Path(home).glob("*/ascend_*_install.info")) if home else ():
        with suppress(OSError):
            found = re.search(r"^version=(.+)$", note.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            if found:
                return f", version {found[1].strip()}"
    return ""


def _package_and_adapter(schemas: dict[str, str]) -> tuple[Finding, Finding]:
    package = environment.find_package()
    where = None if package is None else f"{package.folder}, from {package.found_by}{_owner(package)}"
    try:
        found = loading.check_package(package)
    except TopThetaBackendError as error:
        unknown = Finding("adapter", None, "not looked for: the op package comes first")
        return as_finding("op package", where, error), unknown
    return _reachable(found, where), _adapter(found, schemas)


def _owner(package: Package) -> str:
    try:
        return f", of the user {package.library.stat().st_uid}"
    except OSError:
        return ""


def _reachable(package: Package, where: str | None) -> Finding:
    if environment.PREPARED.too_late:
        problem = f"torch_npu was imported before {CUSTOM_PATH} named this folder"
        return Finding("op package", where, problem, f"import toptheta_npu before torch, or: {package.export_line}")
    return Finding("op package", where)


def _adapter(package: Package, schemas: dict[str, str]) -> Finding:
    try:
        built = loading.check_adapter(package, schemas)
    except TopThetaBackendError as error:
        return as_finding("adapter", str(package.adapter) if package.adapter.exists() else None, error)
    return Finding("adapter", f"{package.adapter}, for torch {built}")


def _devices() -> Finding:
    remedy = "run npu-smi info, and the set_env.sh of CANN; then look at what python -c 'import torch_npu' says"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, encoding="utf-8", errors="replace",
            timeout=_PROBE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Finding("devices", None, f"torch_npu did not answer within {_PROBE_SECONDS} s", remedy)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        return Finding("devices", None, f"torch_npu does not start: {lines[-1].strip()}", remedy)
    names = json.loads(done.stdout[done.stdout.index("{") :])["devices"]
    if not names:
        return Finding("devices", None, "no NPU is visible", "run npu-smi info, and look at ASCEND_RT_VISIBLE_DEVICES")
    emulated = ", emulated" if environment.has_emulated_devices() else ""
    return Finding("devices", f"{len(names)} x {names[0]}{emulated}")
