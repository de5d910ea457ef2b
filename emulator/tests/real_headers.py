"""Type check of kernel sources against the headers of an installed CANN toolkit, where there is one.

The toolkit is named by ASCEND_HOME_PATH, as its own scripts set it. A source that passes is accepted by the toolkit's
headers in CPU mode, down to the overloads of the intrinsics; that says nothing about the device compiler.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
CORE_DEFINES: dict[Core, str] = {"vector": "__DAV_C220_VEC__", "cube": "__DAV_C220_CUBE__"}
#: Headers that a toolkit has as symbolic links, which a copy of it may have lost.
_LINKS = {"lib/matmul_intf.h": "lib/matmul/matmul_intf.h"}


class TypeCheckError(AssertionError):
    """A source that the toolkit's headers refuse; the text holds the compiler's errors."""


@dataclass(frozen=True)
class Toolkit:
    """Where a toolkit keeps the headers of kernels.

    Attributes:
        root: the folder of its machine, such as aarch64-linux.
        api: the headers of Ascend C.
        stubs: what stands in for the device on a CPU.
    """

    root: Path
    api: Path
    stubs: Path

    @property
    def version(self) -> str:
        """As its own header has it, such as 8.1.RC1; empty where there is none."""
        header = self.root / "include" / "version" / "toolkit_version.h"
        match = re.search(r'TOOLKIT_VERSION_STR "([^"]+)"', header.read_text()) if header.is_file() else None
        return match[1] if match else ""

    def api_include_dirs(self) -> list[Path]:
        """Include directories of the headers of Ascend C."""
        basic, high = self.api / "basic_api", self.api / "highlevel_api"
        found = [basic, basic / "impl", basic / "interface", high]
        return [*found, Path(_forwarding_headers(high).name), high / "lib"]

    def include_dirs(self) -> list[Path]:
        """All that a kernel is compiled with on a CPU."""
        return [self.stubs, self.root / "include", *self.api_include_dirs()]


def toolkit() -> Toolkit | None:
    """The toolkit in ASCEND_HOME_PATH; None if there is none."""
    home = Path(os.environ.get("ASCEND_HOME_PATH", "/nonexistent"))
    for api in sorted(home.glob("*-linux/ascendc/include")):
        stubs = home / "tools" / "tikicpulib" / "lib" / "include"
        if (api / "basic_api" / "kernel_operator.h").is_file() and stubs.is_dir():
            return Toolkit(api.parents[1], api, stubs)
    return None


@cache
def _forwarding_headers(api: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder that holds those headers of `_LINKS` which are not below `api`; it goes away with the process."""
    folder = tempfile.TemporaryDirectory(prefix="forwarding-headers-")
    for name, target in _LINKS.items():
        if not (api / name).is_file():
            header = Path(folder.name, name)
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text(f'#include "{target}"\n')
    return folder


NO_TOOLKIT = "no CANN toolkit headers: set ASCEND_HOME_PATH to an installed toolkit (8.1 layout)"
needs_toolkit = pytest.mark.skipif(toolkit() is None, reason=NO_TOOLKIT)


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
    found = toolkit()
    assert found is not None
    macros = {**_DEFINES, CORE_DEFINES[core]: "", **(defines or {})}
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w"]
    command += [f"-D{name}={value}" if value else f"-D{name}" for name, value in macros.items()]
    command += [f"-I{path}" for path in (*found.include_dirs(), *extra)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TypeCheckError(f"{source}: the toolkit's headers refuse it.\n{done.stderr}")
