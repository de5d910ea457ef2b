"""Operator packages as vendors install them, with a libcust_opapi.so that runs the operator on the host model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..ascendc import Kernel, build_kernel
from ..cann import aclnn_signature, describe_operator, operator_library
from ..compile_cache import REPOSITORY, CompileError, cached_folder
from .build import link
from .environment import emulator_variables
from .libraries import build_libraries, include_options
from .op_source import aclnn_header, aclnn_source
from .torch_npu import torch_package

VENDOR = "toptheta"
_SOURCES = Path(__file__).resolve().parent / "package"
_EMULATOR = Path(__file__).resolve().parents[1]
_CANN = _EMULATOR / "cann"
_MACHINE_HEADERS = tuple(_EMULATOR / "ascendc" / "machine" / name for name in ("defects.h", "interface.h"))
_KERNEL = REPOSITORY / "op_kernel" / "top_theta_incremental_attention.cpp"
_DEVICE_TYPES = {"float16": "half", "bfloat16": "bfloat16_t", "int8": "int8_t"}
_TYPE_MACROS = ("DTYPE_QUERY", "DTYPE_KEY", "DTYPE_VALUE")
_PYTHON = REPOSITORY / "toptheta_npu"
_ADAPTER_INPUTS = (
    _PYTHON / "npu" / "adapter.cpp", _PYTHON / "npu" / "adapter_arguments.py", _PYTHON / "npu" / "build.py",
    _PYTHON / "npu" / "interface.py", _PYTHON / "fallback" / "arguments.py",
)  # fmt: skip


def make_op_package(
    place: Path, *, library: bool = True, without: Collection[str] = (), owner: int | None = None
) -> Path:
    """Install the operator as CANN's build does: `place`/vendors/toptheta, for ASCEND_CUSTOM_OPP_PATH.

    Args:
        place: a folder; what it already has at vendors/toptheta is replaced.
        library: False leaves libcust_opapi.so out.
        without: arguments of the definition that the aclnn functions and the header do not have, as in a package
            of another version.
        owner: the user id that the files are given to.

    Returns:
        The folder `place`/vendors/toptheta.

    Raises:
        CompileError: the compiler refuses a source.
        ValueError: a name in `without` that is no argument of the definition.
    """
    signature = _without(aclnn_signature(), without)
    folder = place / "vendors" / VENDOR
    shutil.rmtree(folder, ignore_errors=True)
    include, lib = folder / "op_api" / "include", folder / "op_api" / "lib"
    include.mkdir(parents=True)
    lib.mkdir(parents=True)
    (place / "vendors" / "config.ini").write_text(f"load_priority={VENDOR}\n")
    (include / signature["header"]).write_text(aclnn_header(signature))
    if library:
        shutil.copy2(op_library(signature), lib)
    if owner is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner, -1)
    return folder


def op_library(signature: Mapping[str, Any] | None = None) -> Path:
    """Build libcust_opapi.so for the recorded definition, unless nothing has changed since it was built.

    Args:
        signature: the functions that it exports; None for those that CANN generates.
    """
    runtime = build_libraries()
    operator = operator_library()
    definition = describe_operator()
    kernels = {dtypes: _kernel(*dtypes) for dtypes in _combinations(definition)}
    source = aclnn_source(definition, signature or aclnn_signature(), _KERNEL.stem, kernels)
    sources = sorted(path for path in _SOURCES.iterdir() if path.suffix in (".cpp", ".h"))

    def build(folder: Path) -> None:
        generated = folder / "aclnn_operator.cpp"
        generated.write_text(source)
        folders = [f"-I{_SOURCES}", f"-I{_CANN}", *include_options(), f"-I{_EMULATOR}"]
        units = [generated, *(path for path in sources if path.suffix == ".cpp")]
        libraries = [f"-L{runtime}", "-lopapi", "-lascendcl", str(operator), "-ldl"]
        link(folder / "libcust_opapi.so", units, [*folders, *libraries])

    inputs: list[str | Path] = [source, str(runtime), str(operator), *_MACHINE_HEADERS, *sources]
    return cached_folder("operator", inputs, build) / "libcust_opapi.so"


def default_op_package() -> Path:
    """Make the package that the emulator's environment names: the operator, and toptheta_npu's adapter beside it."""
    adapter = cached_folder("adapter", [sys.executable, str(torch_package()), *_ADAPTER_INPUTS], _build_adapter)

    def build(folder: Path) -> None:
        shutil.copytree(adapter / "torch", make_op_package(folder) / "torch")

    return cached_folder("package", [str(op_library()), str(adapter)], build) / "vendors" / VENDOR


def _combinations(definition: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """List the dtypes of the first three inputs, query, key and value, which the kernel is built for."""
    columns = zip(*(item["types"] for item in definition["inputs"][: len(_TYPE_MACROS)]), strict=True)
    return list(dict.fromkeys(columns))


def _kernel(*dtypes: str) -> Path:
    defines = {macro: _DEVICE_TYPES[dtype] for macro, dtype in zip(_TYPE_MACROS, dtypes, strict=True)}
    return build_kernel(Kernel(_KERNEL, defines=defines))


def _build_adapter(package: Path) -> None:
    variables = dict(os.environ) | emulator_variables(build_libraries(), None)
    command = [sys.executable, "-m", "toptheta_npu.npu.build", str(package)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(command, done.stdout + done.stderr)


def _without(signature: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    plan = signature["get_workspace_size"]
    known = [parameter["definition"] for parameter in plan["parameters"] if parameter["definition"] is not None]
    for name in names:
        if name not in known:
            raise ValueError(f"without: expected arguments of the operator ({', '.join(known)}), got {name!r}")
    parameters = [parameter for parameter in plan["parameters"] if parameter["definition"] not in names]
    return signature | {"get_workspace_size": plan | {"parameters": parameters}}
