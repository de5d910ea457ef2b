"""Which functions of CANN torch_npu's libraries need, and stand-ins for those that the emulator does not have."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

#: The libraries that torch_npu is linked against; every function is in the first, the others are empty.
LIBRARIES = (
    "libascendcl.so", "libhccl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so", "libacl_tdt_channel.so",
)  # fmt: skip
_OF_CANN = re.compile(r"(acl[A-Z]|aclrt|aclop|aclmdl|aclprof|acltdt|rt[A-Z]|Hccl|Hcom|Msprof|hal[A-Z])")
#: libop_plugin_atb.so needs another product and is not loaded by the import.
_OPTIONAL = ("libop_plugin_atb.so",)


def needed_symbols(package: Path) -> set[str]:
    """Find the functions of CANN that the libraries of the torch_npu package leave undefined; all are plain C."""
    libraries = [path for path in sorted(package.glob("lib/lib*.so")) if path.name not in _OPTIONAL]
    undefined = _symbols([*libraries, *package.glob("_C*.so")], "--dynamic", "--undefined-only")
    defined = _symbols(libraries, "--dynamic", "--defined-only")
    return {name for name in undefined - defined if _OF_CANN.match(name)}


def defined_symbols(objects: Sequence[Path]) -> set[str]:
    """Find the functions that object files define."""
    return _symbols(objects, "--defined-only")


def stand_ins(names: Iterable[str]) -> str:
    """Write C++ source of functions that fail with their own name."""
    lines = [
        "// Generated: functions that torch_npu is linked against and the emulator does not have.",
        "// The headers of ACL are not included, because a stand-in has no parameters.",
        "namespace acl_emulator {",
        "int FailUnimplemented(const char* function);",
        "}",
        "",
        'extern "C" {',
        "",
    ]
    lines += [f'int {name}() {{ return acl_emulator::FailUnimplemented("{name}"); }}' for name in sorted(names)]
    return "\n".join([*lines, "", '}  // extern "C"', ""])


def _symbols(files: Sequence[Path], *options: str) -> set[str]:
    command = ["nm", *options, *map(str, files)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    entries = [line.split() for line in text.splitlines() if line.strip() and not line.endswith(":")]
    return {entry[-1].split("@")[0] for entry in entries}
