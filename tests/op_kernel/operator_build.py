"""The source files that the operator build makes of the kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from emulator.compile_cache import default_compiler
from toptheta_host_model import KERNEL_SOURCE

#: The query's dtypes by their names in the kernel's sources.
DTYPES = ("half", "bfloat16_t")
#: Those of query, K and V that the operator is built for, by a name.
COMBINATIONS = {
    f"{query}{name}": (query, *caches)
    for query in DTYPES
    for name, caches in {"": (query, query), "-int8-key": ("int8_t", query), "-int8": ("int8_t", "int8_t")}.items()
}


def dtype_defines(query: str, key: str | None = None, value: str | None = None) -> dict[str, str]:
    """The macros that the build defines for the dtypes of query, key and value, by their names in the sources."""
    return {"DTYPE_QUERY": query, "DTYPE_KEY": key or query, "DTYPE_VALUE": value or query}


#: What the build writes in front of the kernel's source. It copies the tiling word by word from global memory.
_PREAMBLE = """
#include "kernel_operator.h"
#undef KERNEL_TASK_TYPE
#define KERNEL_TASK_TYPE(key, type)
#define REGISTER_TILING_DEFAULT(type)
template <typename T>
__aicore__ inline void CopyTiling(T* to, const __gm__ uint8_t* from)
{
    for (uint32_t i = 0; i < sizeof(T) / sizeof(uint64_t); i++) {
        reinterpret_cast<uint64_t*>(to)[i] = reinterpret_cast<const __gm__ uint64_t*>(from)[i];
    }
}
#define GET_TILING_DATA_WITH_STRUCT(type, name, from) type name; CopyTiling(&name, from)
"""
#: What builds after that of CANN 8.1 write as well.
_POINTERS = """
#define GET_TILING_DATA_PTR_WITH_STRUCT(type, name, from) auto* name = reinterpret_cast<const __gm__ type*>(from)
#define COPY_TILING_WITH_STRUCT(type, from, name) \\
    type copyOf##name; \\
    CopyTiling(&copyOf##name, reinterpret_cast<const __gm__ uint8_t*>(from)); \\
    const type* name = &copyOf##name
"""
#: As far as the build's first pass goes: it preprocesses, and looks for numbers where the text names tiling keys.
_FIRST_PASS = """
#define DECLARED_KEY(key, type) declared_##key = type
#define KERNEL_TASK_TYPE(key, type) DECLARED_KEY(key, type)
#define TILING_KEY_IS(key) (tilingKey == (key))
"""
_ANY_KEY = "static uint64_t tilingKey = 1;\n#define TILING_KEY_VAR tilingKey\n"
#: What it writes behind it, for a kernel with cube cores.
WRAPPER = "void Wrapper(GM_ADDR workspace) { matmul::clearWorkspace(workspace); }\n"


def write_source(
    folder: Path,
    *,
    key: int | None = None,
    kernel: Path = KERNEL_SOURCE,
    behind: str = WRAPPER,
    pointers: bool = True,
) -> Path:
    """A source file in `folder` that compiles `kernel`: for one tiling key, or for all of them at once.

    Args:
        pointers: whether the build has the macros that give a pointer to the tiling data; that of CANN 8.1 has not.
    """
    keys = _ANY_KEY if key is None else f"#define TILING_KEY_VAR {key}\n"
    source = folder / "kernel.cpp"
    source.write_text(f'{_PREAMBLE}{_POINTERS if pointers else ""}{keys}#include "{kernel}"\n{behind}')
    return source


def keys_in_text() -> tuple[dict[int, str], set[int]]:
    """What the first pass of the build finds in the kernel's entry.

    Returns:
        The kind of launch that each tiling key declares, and the keys that have a branch.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in ("kernel_operator.h", "lib/matmul_intf.h"):  # no text of the toolkit's is looked at
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).touch()
        source = Path(folder) / "first_pass.cpp"
        source.write_text(f'{_FIRST_PASS}#include "{KERNEL_SOURCE}"\n')
        command = [default_compiler(), "-E", "-P", f"-I{folder}", str(source)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    declared = re.findall(r"\bdeclared_(\d+) = KERNEL_TYPE_(\w+);", text)
    branches = re.findall(r"\(tilingKey == \((\d+)\)\)", text)
    return {int(key): kind for key, kind in declared}, {int(key) for key in branches}


def edited_kernel(folder: Path, pattern: str, replacement: str) -> Path:
    """The kernel in a copy of its sources where every match of `pattern` is replaced; at least one has to be."""
    copies = folder / "op_kernel"
    shutil.copytree(KERNEL_SOURCE.parent, copies)
    edits = 0
    for path in copies.iterdir():
        text, count = re.subn(pattern, replacement, path.read_text())
        path.write_text(text)
        edits += count
    if edits == 0:
        raise ValueError(f"no source of the kernel holds {pattern!r}")
    return copies / KERNEL_SOURCE.name


def error_in_every_key(folder: Path) -> tuple[Path, int]:
    """A kernel whose code for vector cores fails an assertion under each tiling key, and the number of its keys."""
    planted = r'static_assert(sizeof(kernel) == 0, "planted"); \g<0>'
    kernel = edited_kernel(folder, r"kernel\.template Process<", planted)
    return kernel, len(re.findall(r"\bKERNEL_TASK_TYPE\(", kernel.read_text()))
