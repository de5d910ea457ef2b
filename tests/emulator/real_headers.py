"""Type check of kernel sources against the headers of an installed CANN toolkit, where there is one.

The toolkit is named by ASCEND_HOME_PATH, as its own scripts set it. A source that passes is accepted by the toolkit's
headers in CPU mode, down to the overloads of the intrinsics; that says nothing about the device compiler.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

# 910B, CPU mode: the macros of the toolkit's own tikicpulib CMake targets
_DEFINES = {
    "__CCE_AICORE__": "220",
    "__DAV_C220__": "",
    "__CCE_KT_TEST__": "1",
    "ASCENDC_CPU_DEBUG": "1",
    "ASCENDC_DEBUG": "1",
}

Core = Literal["vector", "cube"]
_CORE_DEFINES: dict[Core, str] = {"vector": "__DAV_C220_VEC__", "cube": "__DAV_C220_CUBE__"}


class TypeCheckError(AssertionError):
    """A source that the toolkit's headers refuse; the text holds the compiler's errors."""


def include_dirs() -> list[Path]:
    """Include directories of the toolkit in ASCEND_HOME_PATH; empty if there is none."""
    home = Path(os.environ.get("ASCEND_HOME_PATH", "/nonexistent"))
    for api in sorted(home.glob("*-linux/ascendc/include")):
        basic = api / "basic_api"
        stubs = home / "tools" / "tikicpulib" / "lib" / "include"
        if (basic / "kernel_operator.h").is_file() and stubs.is_dir():
            parts = (basic, basic / "impl", basic / "interface", api / "highlevel_api")
            return [stubs, api.parents[1] / "include", *parts]
    return []


needs_toolkit = pytest.mark.skipif(
    not include_dirs(), reason="no CANN toolkit headers: set ASCEND_HOME_PATH to an installed toolkit (8.1 layout)"
)


def type_check(
    source: Path, *, core: Core = "vector", defines: Mapping[str, str] | None = None, extra: Sequence[Path] = ()
) -> None:
    """Compiles `source` against the toolkit's headers without producing anything.

    Args:
        source: a kernel that includes "kernel_operator.h".
        core: which core to compile for; a mixed kernel is compiled for each.
        defines: further macros, name to value.
        extra: further include directories.

    Raises:
        TypeCheckError: the headers refuse the source.
    """
    macros = {**_DEFINES, _CORE_DEFINES[core]: "", **(defines or {})}
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w"]
    command += [f"-D{name}={value}" if value else f"-D{name}" for name, value in macros.items()]
    command += [f"-I{path}" for path in (*include_dirs(), *extra)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TypeCheckError(f"{source}: the toolkit's headers refuse it.\n{done.stderr}")
