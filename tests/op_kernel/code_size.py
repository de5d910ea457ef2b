"""Size of the kernel's code, estimated from its intermediate code on the device path of a toolkit's headers.

    python -m tests.op_kernel.code_size [--write]

Prints the tables of "Code size" in docs/kernel.md. With --write it also renews what the tests hold the code against,
docs/results/code_size.json. Needs a toolkit in ASCEND_HOME_PATH and a clang; about two minutes.

On the device path every `inline` function is inlined, so one function per tiling key and kind of core holds all of its
code. An instruction of the intermediate code stands for one of a core, which takes 4 bytes, or for two.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.tables import Table, show
from emulator.tests.real_headers import Core, toolkit
from emulator.tests.real_headers_device import find_clang, llvm_ir, missing
from tests.op_kernel.operator_build import (
    COMBINATIONS,
    DTYPES,
    dtype_defines,
    edited_kernel,
    keys_in_text,
    write_source,
)
from toptheta_host_model import KERNEL_SOURCE

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "code_size.json"
BYTES = (4, 8)
#: Instruction caches of the kinds of cores, in KiB.
CACHES: dict[Core, int] = {"vector": 16, "cube": 32}
#: Modes that share a key with the common call, and where the sources ask for them.
MODES = {
    "statistics": r"\btiling_?(?:->|\.)withStats\b",
    "partial outputs": r"\btiling_?(?:->|\.)partial\b",
    "VMC": r"\bHas\(\*tiling_, InputIndex::kValueMean\)",
}
#: Dtypes of query, K and V with int8 caches, by their columns.
INT8 = {
    "float16, int8": COMBINATIONS["half-int8"], "float16, int8 K": COMBINATIONS["half-int8-key"],
    "bfloat16, int8": COMBINATIONS["bfloat16_t-int8"], "bfloat16, int8 K": COMBINATIONS["bfloat16_t-int8-key"],
}  # fmt: skip
#: The common key whose code is measured without each of them.
MODES_KEY = 2
#: They become no instruction: phi nodes are registers, markers tell the optimiser something.
_NO_INSTRUCTION = re.compile(r"= phi |@llvm\.(?:lifetime|assume|experimental\.noalias|dbg)")


def instructions_in(ir: str) -> int:
    """Instructions of all functions that the intermediate code defines."""
    bodies = re.findall(r"^define .*?^}", ir, re.MULTILINE | re.DOTALL)
    lines = [line for body in bodies for line in body.splitlines() if re.match(r"  [%a-z]", line)]
    return sum(not _NO_INSTRUCTION.search(line) for line in lines)


def forms() -> list[tuple[int, Core]]:
    """Tiling keys and the kinds of cores that run them, by the kernel's entry."""
    declared, _ = keys_in_text()
    return [
        (key, core)
        for key, kind in declared.items()
        for core in (("vector", "cube") if kind.startswith("MIX_AIC") else ("vector",))
    ]  # type: ignore[misc]


@cache
def code_of(key: int, core: Core, dtype: str, kernel: Path = KERNEL_SOURCE) -> str:
    """Intermediate code of one tiling key on one kind of core, of `DTYPES` or `INT8`; half a minute the first time."""
    with tempfile.TemporaryDirectory() as folder:
        source = write_source(Path(folder), key=key, kernel=kernel, behind="")
        return llvm_ir(source, core=core, defines=dtype_defines(*(INT8[dtype] if dtype in INT8 else (DTYPES[dtype],))))


def size_of(key: int, core: Core, dtype: str) -> int:
    """Instructions of one tiling key on one kind of core."""
    return instructions_in(code_of(key, core, dtype))


def size_without(mode: str) -> int:
    """Instructions of `MODES_KEY` on a vector core in float16 if it lacked a mode."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = edited_kernel(Path(folder), MODES[mode], "false")
        return instructions_in(code_of(MODES_KEY, "vector", "float16", kernel))


def measure() -> dict[str, Any]:
    found, clang = toolkit(), find_clang()
    assert found is not None
    assert clang is not None
    return {
        "toolkit": found.version,
        "clang": clang.version,
        "instructions": [
            {"key": key, "core": core, **{dtype: size_of(key, core, dtype) for dtype in DTYPES}}
            for key, core in forms()
        ],
        "int8": [
            {"key": key, "core": core, **{dtypes: size_of(key, core, dtypes) for dtypes in INT8}}
            for key, core in forms()
        ],
        "without": {mode: size_without(mode) for mode in MODES},
    }


def tables(results: Mapping[str, Any]) -> list[Table]:
    """The tables of docs/kernel.md."""
    columns = ("key", "core", *(text for dtype in DTYPES for text in (dtype, "KiB")), "cache, KiB")
    rows = [
        [
            str(row["key"]),
            row["core"],
            *(text for dtype in DTYPES for text in _cells(row[dtype])),
            str(CACHES[row["core"]]),
        ]
        for row in results["instructions"]
    ]
    common = {(row["key"], row["core"]): row["float16"] for row in results["instructions"]}
    whole = common[MODES_KEY, "vector"]
    modes = [
        [name, f"{size:,}", f"{whole - size:,}", f"{1 - size / whole:.1%}"] for name, size in results["without"].items()
    ]
    return [
        Table("Code size", columns, rows),
        Table(
            "int8 caches",
            ("key", "core", *INT8),
            [[str(row["key"]), row["core"], *(f"{row[name]:,}" for name in INT8)] for row in results["int8"]],
        ),
        Table("Modes", ("mode", f"instructions of key {MODES_KEY} without it", "fewer", "share"), modes),
    ]


def _cells(instructions: int) -> tuple[str, str]:
    """A count of instructions, and the band of sizes that it stands for."""
    return f"{instructions:,}", " to ".join(f"{instructions * each / 1024:.0f}" for each in BYTES)


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/results/code_size.json.")] = False,
) -> None:
    """Measure the code of all tiling keys."""
    if lacks := missing():
        Console(stderr=True).print(lacks, highlight=False)
        sys.exit(1)
    results = measure()
    show(*tables(results))
    if write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
