"""Loads the adapter of the op package into the process, after checking all that would otherwise crash or mislead."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path

import torch

from .._libraries import is_whole
from ..errors import TopThetaBackendError
from . import environment
from .environment import CUSTOM_PATH, Package
from .interface import PLAN, RUN, difference, fingerprint

_REBUILD = "build it again with: python -m toptheta_npu.npu.build {folder}"
_REINSTALL = "build and install it again with op_host/build.sh of this version"
_LOCK = threading.Lock()
_loaded: Package | None = None


def loaded() -> Package | None:
    """Return the op package whose adapter is in this process."""
    return _loaded


def load(schemas: dict[str, str]) -> Package:
    """Load the adapter once; later calls return at once.

    Args:
        schemas: of the registered operators, by name.

    Raises:
        TopThetaBackendError: what is missing or does not fit, and what to type.
    """
    global _loaded
    with _LOCK:
        if _loaded is None:
            package = check_package(environment.find_package())
            check_adapter(package, schemas)
            check_functions(package)
            _open(package, next(iter(schemas)))
            _loaded = package
    return _loaded


def check_package(package: Package | None) -> Package:
    """Check that the op package is complete, readable by torch_npu and has this version's parameters; return it."""
    if package is None:
        raise TopThetaBackendError(
            "op package", environment.searched_places(), "no such folder",
            "build and install it with: op_host/build.sh --install-path=DIR",
        )  # fmt: skip
    if not package.folder.is_absolute():
        # torch_npu resolves it when it is imported, CANN when it starts: after a change of directory two folders
        raise TopThetaBackendError(CUSTOM_PATH, "absolute paths", str(package.folder), package.export_line)
    for needed in (package.library, package.header):
        if not os.path.isfile(needed):
            raise TopThetaBackendError("op package", str(needed), "no such file", _REINSTALL)
    _check_owner("op package", package.library, "since torch_npu skips those of others")
    try:
        found = difference(package.header.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise TopThetaBackendError("op package", f"a readable {package.header}", str(error), _REINSTALL) from error
    if found is not None:
        expected = f"the interface of this version in {package.header}"
        raise TopThetaBackendError("op package", expected, found, _REINSTALL)
    return package


def _check_owner(what: str, library: Path, reason: str) -> None:
    """Check that a library is the user's or root's. torch_npu has this rule: it acts as if others were not there.

    Observed with torch_npu 2.13; only the file counts, and only the real user.
    """
    user, owner = os.getuid(), _owner(library)
    if owner in (user, 0):
        return
    allowed = f"of the user {user}" if user == 0 else f"of the user {user} or of root"
    raise TopThetaBackendError(
        what, f"a library {allowed}, {reason}",
        f"{library}, which belongs to the user {owner}", f"give it to the user that runs it: chown {user} {library}",
    )  # fmt: skip


def _owner(path: Path) -> int:
    return path.stat().st_uid


def check_adapter(package: Package, schemas: dict[str, str]) -> str:
    """Check that there is an adapter for this torch and this version of the operators. Return the torch it is for."""
    rebuild = _REBUILD.format(folder=package.folder)
    if not os.path.isfile(package.adapter):
        raise TopThetaBackendError("adapter", str(package.adapter), "no such file", rebuild)
    _check_owner("adapter", package.adapter, "since it is loaded into the process")
    sidecar = package.adapter.with_name("adapter.json")
    try:
        note = json.loads(sidecar.read_text(encoding="utf-8"))
        built, interface = str(note["torch"]), note["interface"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = f"a note of what it was built for in {sidecar}"
        raise TopThetaBackendError("adapter", expected, "none", rebuild) from error
    if built.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise TopThetaBackendError("adapter", f"one for torch {torch.__version__}", f"one for torch {built}", rebuild)
    if interface != fingerprint(schemas):
        raise TopThetaBackendError("adapter", "one for this version of toptheta_npu", "one for another", rebuild)
    if not is_whole(package.adapter):
        got = f"{package.adapter}, which is damaged or has no checksum"
        raise TopThetaBackendError("adapter", "a library as it was built", got, rebuild)
    return built


def check_functions(package: Package) -> None:
    """Check that torch_npu finds the package's functions. It does so by what it read when it was imported."""
    try:
        # in the process already, so no search path is needed
        find = ctypes.CDLL("libtorch_npu.so")._Z16GetOpApiFuncAddrPKc
    except OSError as error:
        raise TopThetaBackendError(
            "torch_npu", "it to be imported", str(error),
            "import torch_npu before the first call; see: toptheta doctor",
        ) from error  # fmt: skip
    except AttributeError as error:
        raise TopThetaBackendError(
            "torch_npu", "a version with GetOpApiFuncAddr", str(error), "install torch_npu 2.8 or newer, and its torch",
        ) from error  # fmt: skip
    find.restype = ctypes.c_void_p
    missing = [name for name in (PLAN, RUN) if not find(name.encode())]
    if not missing:
        return
    named = [os.path.abspath(entry) for entry in os.environ.get(CUSTOM_PATH, "").split(":") if entry]
    if environment.PREPARED.too_late or str(package.folder) not in named:
        raise TopThetaBackendError(
            CUSTOM_PATH, f"{package.folder} in it when torch_npu was imported", "torch_npu imported without it",
            f"import toptheta_npu before torch, or start Python after: {package.export_line}",
        )  # fmt: skip
    raise TopThetaBackendError(
        "op package", f"{' and '.join(missing)} in {package.library}", f"none; torch_npu looked into {CUSTOM_PATH}",
        f"{_REINSTALL}, or, if the variable was set after torch_npu was imported, start Python after: "
        f"{package.export_line}",
    )  # fmt: skip


def _open(package: Package, operator: str) -> None:
    rebuild = _REBUILD.format(folder=package.folder)
    try:
        ctypes.CDLL(str(package.adapter))
    except OSError as error:
        raise TopThetaBackendError("adapter", "a library that can be loaded", str(error), rebuild) from error
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"toptheta_npu::{operator}", "PrivateUse1"):
        raise TopThetaBackendError("adapter", f"it to register toptheta_npu::{operator}", "nothing registered", rebuild)
