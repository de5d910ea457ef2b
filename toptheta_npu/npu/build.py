"""Builds the adapter beside an op package: ``python -m toptheta_npu.npu.build vendors/toptheta``.

Needs g++ and the headers of the torch that will load it, and the libraries of an installed torch_npu, which is not
imported; neither CANN nor a device.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from .._compiler import CompilerFailure, find_compiler, run_compiler
from .._files import move_into_place, write_atomically
from .._libraries import seal
from .._streams import standard_streams
from ..errors import TopThetaBackendError, TopThetaError
from ..fallback.schemas import SCHEMAS
from .adapter_arguments import HEADER, adapter_header
from .interface import fingerprint

SOURCE = Path(__file__).with_name("adapter.cpp")
LIBRARY = "libtoptheta_npu_adapter.so"
SIDECAR = "adapter.json"


def torch_npu_folder() -> Path:
    """Find the folder of the installed torch_npu package without importing it.

    Raises:
        TopThetaBackendError: there is none.
    """
    found = importlib.util.find_spec("torch_npu")
    if found is None or not found.submodule_search_locations:
        raise TopThetaBackendError(
            "torch_npu", f"it to be installed in {sys.prefix}", "no such package",
            f"install the torch_npu made for torch {torch.__version__}, then build again",
        )  # fmt: skip
    return Path(found.submodule_search_locations[0])


def compile_command(source: Path, library: Path, compiler: Sequence[str]) -> list[str]:
    """Make the command that compiles an adapter source against the installed torch and torch_npu.

    The header that it includes lies beside ``library``.
    """
    root = Path(torch.__file__).parent
    # torch 2.13 asks for C++17, later versions for C++20, which all compilers that build them know
    standard = "c++20" if _release(torch.__version__) > (2, 13) else "c++17"
    abi = int(torch.compiled_with_cxx11_abi())
    return [
        *compiler, f"-std={standard}", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        "-isystem", f"{root}/include", "-isystem", f"{root}/include/torch/csrc/api/include", f"-I{library.parent}",
        str(source),
        "-o", str(library), f"-L{root}/lib", f"-L{torch_npu_folder()}/lib", "-ltorch_cpu", "-lc10", "-ltorch_npu",
        # CANN's own libraries are torch_npu's to find
        "-Wl,--allow-shlib-undefined", "-ldl",
    ]  # fmt: skip


def build_adapter(folder: Path, *, source: Path = SOURCE, compiler: str | None = None) -> Path:
    """Compile the adapter into a folder, with a note of what it was built for beside it.

    Args:
        folder: ``torch`` below the op package; made if it is missing.
        source: another source, for example one with a fault to be found.
        compiler: the C++ compiler; None takes $CXX, g++, c++ or clang++.

    Returns:
        The path of the library.

    Raises:
        TopThetaBackendError: torch_npu or the compiler is missing, or the source does not compile.
    """
    found = find_compiler(compiler)
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    with tempfile.TemporaryDirectory(dir=folder.absolute()) as made:
        unfinished = Path(made)
        (unfinished / HEADER).write_text(adapter_header(), encoding="utf-8")
        command = compile_command(source.absolute(), unfinished / LIBRARY, found.command)
        try:
            run_compiler(command)
        except CompilerFailure as failure:
            remedy = failure.remedy(folder) or f"the command was {shlex.join(command)}"
            got = f"{failure.ending}\n{failure.output}"
            raise TopThetaBackendError("adapter", "it to compile", got, remedy) from failure
        # moved only when complete: a process that loads it meanwhile keeps the old one
        seal(unfinished / LIBRARY)
        move_into_place(unfinished / LIBRARY, library)
    write_atomically(folder / SIDECAR, json.dumps(built_for(), indent=2) + "\n")
    return library


def built_for() -> dict[str, str]:
    """Make the note that lies beside the library."""
    return {
        "torch": torch.__version__,
        "torch_npu": importlib.metadata.version("torch_npu"),
        "interface": fingerprint(SCHEMAS),
    }


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m toptheta_npu.npu.build", description=__doc__)
    parser.add_argument("package", type=Path, help="the installed op package, a folder .../vendors/toptheta")
    arguments = parser.parse_args()
    with standard_streams():
        try:
            library = build_adapter(arguments.package / "torch")
        except (TopThetaError, OSError) as error:  # such as a folder that may not be written
            sys.exit(f"build: {error}")
        print(f"Adapter: {library}")


if __name__ == "__main__":
    main()
