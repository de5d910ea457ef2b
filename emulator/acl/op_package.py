"""Operator packages as vendors install them, with a libcust_opapi.so that runs the operator on the host model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..ascendc import Kernel, build_kernel
from ..cann import kernel_combinations, kernel_defines
from ..compile_cache import CompileError, cached_folder
from .build import link
from .environment import emulator_variables
from .libraries import build_libraries, include_options
from .op_source import aclnn_header, aclnn_source
from .project import Project
from .torch_npu import torch_package

_SOURCES = Path(__file__).resolve().parent / "package"
_EMULATOR = Path(__file__).resolve().parents[1]
_CANN = _EMULATOR / "cann"
_MACHINE_HEADERS = tuple(_EMULATOR / "ascendc" / "machine" / name for name in ("defects.h", "interface.h"))


def make_op_package(project: Project, place: Path) -> Path:
    """Install the operator as CANN's build does: `place`/vendors/VENDOR, for ASCEND_CUSTOM_OPP_PATH.

    Args:
        project: the sources and the vendor.
        place: a folder; what it already has of this vendor is replaced.

    Returns:
        The folder `place`/vendors/VENDOR.

    Raises:
        CompileError: the compiler refuses a source.
    """
    signature = project.operator.aclnn_signature()
    folder = place / "vendors" / project.vendor
    shutil.rmtree(folder, ignore_errors=True)
    include, lib = folder / "op_api" / "include", folder / "op_api" / "lib"
    include.mkdir(parents=True)
    lib.mkdir(parents=True)
    (place / "vendors" / "config.ini").write_text(f"load_priority={project.vendor}\n")
    (include / signature["header"]).write_text(aclnn_header(signature))
    shutil.copy2(op_library(project), lib)
    return folder


def op_library(project: Project) -> Path:
    """Build libcust_opapi.so for the recorded definition, unless nothing has changed since it was built."""
    runtime = build_libraries()
    operator = project.operator.library()
    definition = project.operator.describe()
    kernels = {
        tuple(dtypes.values()): _kernel(project, definition, dtypes) for dtypes in kernel_combinations(definition)
    }
    source = aclnn_source(definition, project.operator.aclnn_signature(), project.kernel.stem, kernels)
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


def default_op_package(project: Project) -> Path:
    """Make the package that the emulator's environment names: the operator, and what the project builds beside it."""
    inputs: list[str | Path] = [sys.executable, str(torch_package()), *project.build, *project.build_inputs]
    more = cached_folder("beside", inputs, lambda folder: _run_build(project, folder)) if project.build else None

    def build(folder: Path) -> None:
        package = make_op_package(project, folder)
        if more is not None:
            shutil.copytree(more, package, dirs_exist_ok=True)

    return (
        cached_folder("package", [str(op_library(project)), project.vendor, str(more)], build)
        / "vendors"
        / project.vendor
    )


def _kernel(project: Project, definition: Mapping[str, Any], dtypes: Mapping[str, str]) -> Path:
    return build_kernel(Kernel(project.kernel, defines=kernel_defines(definition, dtypes)))


def _run_build(project: Project, folder: Path) -> None:
    variables = dict(os.environ) | emulator_variables(build_libraries(), None)
    command = [part.format(python=sys.executable, folder=folder) for part in project.build]
    done = subprocess.run(
        command, cwd=project.folder, env=variables, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode != 0:
        raise CompileError(command, done.stdout + done.stderr)
