"""op_host/experimental/export.sh: the operator as a folder of an operator repository's experimental area."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = _ROOT / "op_host" / "experimental" / "export.sh"
_OPERATOR = "top_theta_incremental_attention"
#: In place of CANN's, and of the operator repository's.
_HEADERS = (
    _ROOT / "emulator" / "cann" / "include",
    _ROOT / "emulator" / "ascendc" / "include",
    _ROOT / "tests/ut/common",
)
#: What only the build of an operator package makes, and the runtime.
_OF_A_PACKAGE = {"acl/acl.h", f"aclnn_{_OPERATOR}.h"}


def _run(*arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", _SCRIPT, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / _OPERATOR}\n"
    return tmp_path / _OPERATOR


def test_it_has_the_layout_of_such_an_area(folder: Path) -> None:
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files >= {
        "README.md", "README_en.md", "LICENSE", "docs/aclnnTopThetaIncrementalAttention.md",
        f"examples/test_aclnn_{_OPERATOR}.cpp", "op_host/CMakeLists.txt", f"op_host/{_OPERATOR}_def.cpp",
        f"op_host/{_OPERATOR}_infershape.cpp", f"op_host/{_OPERATOR}_tiling.cpp", f"op_kernel/{_OPERATOR}.cpp",
        "tests/CMakeLists.txt", "tests/ut/CMakeLists.txt", "tests/ut/op_host/CMakeLists.txt",
        f"tests/ut/op_host/test_{_OPERATOR}_tiling.cpp", f"tests/ut/op_api/test_aclnn_{_OPERATOR}.cpp",
    }  # fmt: skip
    assert not [file for file in files if file.endswith((".sh", ".json", ".py"))]


def test_what_its_sources_include_is_there(folder: Path) -> None:
    for source in (*folder.rglob("*.h"), *folder.rglob("op_*/*.cpp")):
        for name in re.findall(r'^#include "([^"]+)"', source.read_text(), re.MULTILINE):
            of_cann = any((stand_in / name).is_file() for stand_in in _HEADERS)
            assert of_cann or name in _OF_A_PACKAGE or (source.parent / name).is_file(), f"{source.name}: {name}"


def test_its_host_sources_compile(folder: Path) -> None:
    for source in (folder / "op_host").glob("*.cpp"):
        command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{_HEADERS[0]}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_its_links_lead_somewhere(folder: Path) -> None:
    for page in folder.rglob("*.md"):
        links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        assert not [link for link in links if not (page.parent / link).is_file()]


def test_the_kernel_is_compiled_as_in_our_own_package() -> None:
    options = "--cce-auto-sync=off"
    for project in (_SCRIPT.parent / "CMakeLists.txt", _ROOT / "op_host" / "CMakeLists.txt"):
        assert options in project.read_text()


def test_nothing_is_overwritten(folder: Path) -> None:
    done = _run(folder.parent)
    assert done.returncode == 1
    assert done.stderr.startswith(f"export.sh: {folder}: expected nothing there, got a file or folder")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = _run(tmp_path / "missing")
    assert done.returncode == 1
    assert done.stderr.startswith("export.sh: expected one folder that exists, got")
