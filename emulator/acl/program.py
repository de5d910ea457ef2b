"""Programs in C++ that call operators by aclnn, without PyTorch."""

from __future__ import annotations

from pathlib import Path

from ..compile_cache import default_compiler, run_compiler
from .libraries import acl_options, build_libraries


def build_program(source: Path, target: Path, package: Path) -> None:
    """Compile `source` into the program `target`, against the emulator's ACL and an operator package.

    Args:
        package: a vendor folder from `make_op_package`.

    Raises:
        CompileError: the compiler refuses the source.

    The program finds the libraries wherever it is started; the emulator's settings are read from its environment.
    """
    runtime, operators = build_libraries(), package / "op_api"
    libraries = [
        option for folder in (runtime, operators / "lib") for option in (f"-L{folder}", f"-Wl,-rpath,{folder}")
    ]
    run_compiler([
        default_compiler(), "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{operators / 'include'}",
        *acl_options(), str(source), "-o", str(target), *libraries, "-lcust_opapi", "-lopapi", "-lascendcl",
    ])  # fmt: skip
