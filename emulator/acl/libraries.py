"""The ACL runtime libraries and the reroute of aten, built for the installed torch_npu and torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..compile_cache import cached_folder
from .build import FLAGS, compile_objects, link
from .settings import TORCH_NPU_VERSION
from .symbols import LIBRARIES, defined_symbols, needed_symbols, stand_ins
from .torch_npu import torch_npu_package, torch_package

_HERE = Path(__file__).resolve().parent
RUNTIME_SOURCES = _HERE / "runtime"
OPERATOR_SOURCES = _HERE / "operators"
_ATEN_SOURCE = _HERE / "aten" / "reroute.cpp"
REROUTE_LIBRARY = "libacl_emulator_aten.so"


def build_libraries() -> Path:
    """Build the folder with libascendcl.so, libopapi.so, the empty libraries and the reroute of aten.

    Raises:
        CompileError: the compiler refuses a source.
    """
    sources = [*_files(RUNTIME_SOURCES), *_files(OPERATOR_SOURCES), _ATEN_SOURCE]
    how = [Path(__file__), _HERE / "symbols.py"]
    return cached_folder("libraries", [*FLAGS, TORCH_NPU_VERSION, str(torch_package()), *sources, *how], _build)


def include_options() -> list[str]:
    """List compiler options for the headers of ACL, which are part of the wheel, and the emulator's own."""
    headers = torch_npu_package() / "include"
    own = [f"-I{path}" for path in (RUNTIME_SOURCES, OPERATOR_SOURCES)]
    return [*own, *acl_options(headers)]


def acl_options(headers: Path | None = None) -> list[str]:
    """List compiler options for the headers of ACL alone, as a program that calls it needs them."""
    headers = headers or torch_npu_package() / "include"
    folders = (_HERE / "include", headers, headers / "acl")
    return [option for folder in folders for option in ("-isystem", str(folder))]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".cpp", ".h"))


def _build(folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:  # the reroute takes as long as everything else together
        reroute = pool.submit(_build_reroute, folder)
        _build_runtime(folder)
        reroute.result()


def _build_runtime(folder: Path) -> None:
    objects = compile_objects(sorted(RUNTIME_SOURCES.glob("*.cpp")), folder, include_options())
    generated = folder / "stand_ins.cpp"
    generated.write_text(stand_ins(needed_symbols(torch_npu_package()) - defined_symbols(objects)))
    link(folder / LIBRARIES[0], [*objects, generated], [])
    for path in objects:
        path.unlink()
    nothing = folder / "nothing.cpp"
    nothing.write_text("// Generated: a library without functions of its own.\n")
    for name in LIBRARIES[1:]:
        # a function that is looked up in one of them is found in libascendcl
        link(folder / name, [nothing], ["-Wl,--no-as-needed", f"-L{folder}", "-lascendcl"])
    link(folder / "libopapi.so", sorted(OPERATOR_SOURCES.glob("*.cpp")),
         [*include_options(), f"-L{folder}", "-lascendcl"])  # fmt: skip


def _build_reroute(folder: Path) -> None:
    torch = torch_package()
    options = ["-isystem", str(torch / "include"), f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    flags = [flag.replace("c++17", "c++20").replace("-O2", "-O1") for flag in FLAGS]
    link(folder / REROUTE_LIBRARY, [_ATEN_SOURCE], options, flags)
