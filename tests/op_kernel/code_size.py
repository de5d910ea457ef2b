"""Size of the kernel's code, estimated from its intermediate code on the device path of a toolkit's headers.

    python -m tests.op_kernel.code_size [--write]

Prints the figures of "Code size" in docs/kernel.md. With --write it also renews what the tests hold the code against,
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
from tests.op_kernel.operator_build import COMBINATIONS, dtype_defines, keys_in_text, write_source

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "code_size.json"
BYTES = (4, 8)
#: Instruction caches of the kinds of cores, in KiB.
CACHES: dict[Core, int] = {"vector": 16, "cube": 32}
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
def code_of(key: int, core: Core, dtypes: str) -> str:
    """Intermediate code of one tiling key on one kind of core, for one of `COMBINATIONS`; half a minute at first."""
    with tempfile.TemporaryDirectory() as folder:
        source = write_source(Path(folder), key=key, behind="")
        return llvm_ir(source, core=core, defines=dtype_defines(*COMBINATIONS[dtypes]))


def size_of(key: int, core: Core, dtypes: str) -> int:
    """Instructions of one tiling key on one kind of core."""
    return instructions_in(code_of(key, core, dtypes))


def measure() -> dict[str, Any]:
    found, clang = toolkit(), find_clang()
    assert found is not None
    assert clang is not None
    return {
        "toolkit": found.version,
        "clang": clang.version,
        "instructions": [
            {"key": key, "core": core, **{dtypes: size_of(key, core, dtypes) for dtypes in COMBINATIONS}}
            for key, core in forms()
        ],
    }


def table(results: Mapping[str, Any]) -> Table:
    """Instructions of every key and core, and the KiB that those in float16 stand for, beside the cache."""
    rows = [
        [str(row["key"]), row["core"], *(f"{row[dtypes]:,}" for dtypes in COMBINATIONS), _kib(row["half"]),
         str(CACHES[row["core"]])] for row in results["instructions"]
    ]  # fmt: skip
    return Table("Code size", ("key", "core", *COMBINATIONS, "half, KiB", "cache, KiB"), rows)


def _kib(instructions: int) -> str:
    return " to ".join(f"{instructions * each / 1024:.0f}" for each in BYTES)


def main(
    write: Annotated[bool, typer.Option("--write", help="Renew docs/results/code_size.json.")] = False,
) -> None:
    """Measure the code of all tiling keys."""
    if lacks := missing():
        Console(stderr=True).print(lacks, highlight=False)
        sys.exit(1)
    results = measure()
    show(table(results))
    if write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
