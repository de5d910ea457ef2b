"""Kernel sources through the device path of an installed toolkit's headers, compiled by an ordinary clang.

The headers have two paths. `real_headers` checks the one for CPUs, where the qualifiers of memories (`__gm__`,
`__ubuf__`) mean nothing. On the other, the functions of the device are built into the device compiler, and a pointer
into one memory is no pointer into another. Here the toolkit's own list of those functions (stub_fun.h) declares them,
and each memory is an address space, which clang keeps apart. What is made of the toolkit for this lies in a temporary
folder and goes away with the process.

Limits: a generic front end is no device compiler. It selects no instructions and knows no limits of stacks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from emulator.tests.real_headers import CORE_DEFINES, NO_TOOLKIT, Core, Toolkit, TypeCheckError, toolkit

#: Memory qualifiers in the order of their address spaces, from 1 on.
_MEMORIES = ("__gm__", "__cbuf__", "__ca__", "__cb__", "__cc__", "__ubuf__", "__fbuf__")
#: Qualifiers of functions and variables that mean nothing to a generic front end.
_EMPTY = ("__global__", "__aicore__", "__BLOCK_LOCAL__", "__WORKGROUP_LOCAL__", "__sync_noalias__", "__sync_alias__",
          "__check_sync_alias__", "__sync_out__", "__sync_in__")  # fmt: skip
_EMPTY_FUNCTIONS = ("__inout_pipe__", "__in_pipe__", "__out_pipe__")
_DEFINES = {"__CCE_AICORE__": "220", "__DAV_C220__": ""}
#: The oldest clang that knows arithmetic of both 16-bit types.
MIN_CLANG = 17
#: What the device compiler does and accepts.
_OPTIONS = ("-fno-exceptions", "-fno-rtti", "-Wno-missing-template-arg-list-after-template-kw")
#: Text: the device compiler lets a literal be one of global memory.
_TEXT = re.compile(r"__gm__ (?=(?:const )?char\b)")
#: Headers that cast data of global memory to text.
_CASTS_TEXT = ("hccl_v220_impl.h",)


@dataclass(frozen=True)
class Clang:
    program: str
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


@cache
def find_clang() -> Clang | None:
    """The newest clang++ on the path that can compile the device path."""
    found = []
    for name in ("clang++", *(f"clang++-{major}" for major in range(MIN_CLANG, 40))):
        if program := shutil.which(name):
            text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
            if match := re.search(r"clang version (\d+(?:\.\d+)*)", text):
                found.append(Clang(program, match[1]))
    newest = max(found, key=lambda clang: clang.major, default=None)
    return newest if newest and newest.major >= MIN_CLANG else None


def missing() -> str:
    """What the device path needs and this machine lacks; empty if nothing."""
    lacks = []
    if toolkit() is None:
        lacks.append(NO_TOOLKIT)
    if find_clang() is None:
        lacks.append(f"no clang++ {MIN_CLANG} or newer: on Debian or Ubuntu, apt-get install clang-19")
    return "; ".join(lacks)


needs_device_path = pytest.mark.skipif(bool(missing()), reason=missing())


def check(source: Path, *, core: Core, defines: Mapping[str, str] | None = None, extra: Sequence[Path] = ()) -> None:
    """Compiles `source` through the device path without producing anything; arguments and errors as `type_check`."""
    _compile(source, ["-fsyntax-only"], core, defines or {}, extra)


def llvm_ir(source: Path, *, core: Core, defines: Mapping[str, str] | None = None) -> str:
    """The optimised intermediate code of `source`; the functions of the device are calls without a body.

    Raises:
        TypeCheckError: as `check`.
    """
    return _compile(source, ["-O2", "-S", "-emit-llvm", "-o", "-"], core, defines or {}, ())


def device_functions() -> frozenset[str]:
    """Names of the functions that the device compiler has built in, by the toolkit's list."""
    return frozenset(
        re.findall(r"^(?:void|u?int64_t|half|vector_\w+)\s*\*?\s*(\w+)\(", _shim().intrinsics, re.MULTILINE)
    )


def _compile(source: Path, action: list[str], core: Core, defines: Mapping[str, str], extra: Sequence[Path]) -> str:
    clang, shim = find_clang(), _shim()
    assert clang is not None
    macros = {**_DEFINES, CORE_DEFINES[core]: "", **defines}
    command = [clang.program, "-std=c++17", "-w", *_OPTIONS, *action]
    command += [f"-D{name}={value}" if value else f"-D{name}" for name, value in macros.items()]
    command += ["-include", str(shim.folder / "device.h")]
    command += [f"-I{path}" for path in (shim.folder, *shim.headers.api_include_dirs(), *extra)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TypeCheckError(f"{source}: the device path of the toolkit's headers refuses it.\n{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class _Shim:
    """What stands in for the device compiler: its own headers, and the toolkit's as they are edited."""

    holder: tempfile.TemporaryDirectory[str]
    headers: Toolkit
    intrinsics: str

    @property
    def folder(self) -> Path:
        return Path(self.holder.name)


@cache
def _shim() -> _Shim:
    """Made once for each process."""
    real = toolkit()
    assert real is not None
    holder = tempfile.TemporaryDirectory(prefix="device-path-")
    folder = Path(holder.name)
    api = folder / "api"
    shutil.copytree(real.api, api)
    built_in: set[str] = set()
    for header in (*api.rglob("*.h"), *api.rglob("*.cppm")):
        text = header.read_text(errors="replace")
        if _TEXT.search(text) and header.name not in _CASTS_TEXT:
            header.write_text(_TEXT.sub("", text))
        built_in.update(re.findall(r"\bbisheng::cce::(\w+)\(\)", text))
    intrinsics = _declarations((real.stubs / "stub_fun.h").read_text())
    (folder / "stub_fun.h").write_text(intrinsics)
    (folder / "stub_def.h").write_text(_definitions(intrinsics))
    for name in ("kernel_fp16.h", "kernel_bf16.h"):  # classes of the CPU; here these types are the compiler's
        (folder / name).write_text("")
    functions = " ".join(f"void {name}();" for name in sorted(built_in))
    device = f'#include "stub_fun.h"\nnamespace bisheng::cce {{ {functions} }}\n'
    (folder / "device.h").write_text(device)
    return _Shim(holder, Toolkit(real.root, api, real.stubs), intrinsics)


def _declarations(text: str) -> str:
    """The toolkit's list, which was made for CPUs, with what only address spaces show put right."""
    # a cache line of the Unified Buffer is not one of global memory
    text = re.sub(r"(void dcci\()__gm__( [^)]*\);)", r"\g<0>\n\1__ubuf__\2", text)
    # an integer fits both an integer and the compiler's half
    text = re.sub(r"void create_cbuf_matrix\(__cbuf__ uint32_t[^)]*\bhalf\b[^)]*\);", "", text)
    # copies to L0B of bfloat16 go to L0B
    return re.sub(r"(void load_cbuf_to_cb\()__ca__( bfloat16_t\*)", r"\1__cb__\2", text)


def _definitions(intrinsics: str) -> str:
    """Qualifiers and types that the device compiler has built in."""
    lines = [
        "#pragma once",
        "#include <cstddef>",
        "#include <cstdint>",
        "using half = _Float16;",
        "using bfloat16_t = __bf16;",
    ]
    lines += [f"#define {name} __attribute__((address_space({space})))" for space, name in enumerate(_MEMORIES, 1)]
    lines += [f"#define {name}" for name in _EMPTY]
    lines += [f"#define {name}(...)" for name in _EMPTY_FUNCTIONS]
    # registers of newer cores, which only declarations name
    lines += [f"struct {name} {{}};" for name in sorted(set(re.findall(r"\bvector_\w+", intrinsics)))]
    return "\n".join(lines) + "\n"
