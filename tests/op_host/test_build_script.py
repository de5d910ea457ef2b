"""build.sh as far as it goes without CANN: syntax, help, errors, and its steps with stand-ins for the toolkit."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).resolve().parents[2] / "op_host" / "build.sh"
_FUNCTIONS = "compiler/tikcpp/ascendc_kernel_cmake/fwk_modules/func.cmake"
#: Stands for cmake: the package that it leaves behind installs what a real one does, as far as the script looks.
_CMAKE = """#!/usr/bin/env bash
echo "cmake $*" >> "$RECORD"
for argument in "$@"; do case $argument in -B) next=1 ;; *) [ "${next:-}" ] && folder=$argument; next= ;; esac; done
if [ "$1" = --build ]; then
    cat > "$2/custom_opp_debian_x86_64.run" <<'END'
root=${1#--install-path=}/vendors/toptheta
mkdir -p "$root/bin" "$root/scripts"
touch "$root/bin/set_env.bash"
echo 'rm -r "$(dirname "$0")/../bin"; echo uninstalled' > "$root/scripts/uninstall.sh"
END
fi
"""


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "ASCEND_HOME_PATH"}
    command = ["bash", str(_SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**inherited, **environment})


@pytest.fixture
def toolkit(tmp_path: Path) -> dict[str, str]:
    """Environment with a toolkit's CMake functions and a cmake that writes down how it is called."""
    functions = tmp_path / "cann" / _FUNCTIONS
    functions.parent.mkdir(parents=True)
    functions.touch()
    program = tmp_path / "bin" / "cmake"
    program.parent.mkdir()
    program.write_text(_CMAKE)
    program.chmod(0o755)
    return {
        "ASCEND_HOME_PATH": str(tmp_path / "cann"),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "RECORD": str(tmp_path / "record"),
    }


def test_help_names_every_option() -> None:
    done = _run("--help")
    assert done.returncode == 0
    handled = re.findall(r"^ +(--[a-z-]+)(?:=\?\*)?\)", _SCRIPT.read_text(), re.MULTILINE)
    assert set(handled) == {"--soc", "--install-path", "--build-dir", "--jobs", "--help"}
    assert all(option in done.stdout for option in handled)


def test_no_toolkit() -> None:
    done = _run()
    assert done.returncode == 1
    wanted = "build.sh: ASCEND_HOME_PATH: expected the folder of an installed CANN toolkit, got nothing; run\n"
    assert done.stderr.startswith(wanted)
    assert "source /usr/local/Ascend/ascend-toolkit/set_env.sh" in done.stderr


def test_toolkit_without_cmake_functions(tmp_path: Path) -> None:
    done = _run(ASCEND_HOME_PATH=str(tmp_path))
    assert done.returncode == 1
    assert f"expected CANN's CMake functions for operator packages in\n    {tmp_path / _FUNCTIONS}" in done.stderr


@pytest.mark.parametrize("option", ["--socs=ascend910b", "--soc=", "ascend910b", "--install-path"])
def test_unknown_option(option: str) -> None:
    done = _run(option)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"build.sh: {option}: expected one of the options above"


def test_build_only(toolkit: dict[str, str], tmp_path: Path) -> None:
    build = tmp_path / "build"
    done = _run(f"--build-dir={build}", "--jobs=3", **toolkit)
    assert done.returncode == 0, done.stderr
    configure, compile_all = Path(toolkit["RECORD"]).read_text().splitlines()
    assert configure == (
        f"cmake -S {_SCRIPT.parent} -B {build} -DCMAKE_BUILD_TYPE=Release "
        f"-DASCEND_CANN_PACKAGE_PATH={toolkit['ASCEND_HOME_PATH']} "
        "-DASCEND_COMPUTE_UNIT=ascend910b;ascend910_93 -Dvendor_name=toptheta"
    )
    assert compile_all == f"cmake --build {build} --target binary package --parallel 3"
    assert f"Package: {build}/custom_opp_debian_x86_64.run" in done.stdout
    assert "To install it:" in done.stdout


def test_build_and_install_twice(toolkit: dict[str, str], tmp_path: Path) -> None:
    arguments = (f"--build-dir={tmp_path / 'build'}", f"--install-path={tmp_path / 'opp'}", "--soc=ascend910b")
    first, second = _run(*arguments, **toolkit), _run(*arguments, **toolkit)
    for done in (first, second):
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].strip() == f"source {tmp_path}/opp/vendors/toptheta/bin/set_env.bash"
    assert "uninstalled" not in first.stdout
    assert "uninstalled" in second.stdout, "a newer package goes where the older one was removed"
    assert "-DASCEND_COMPUTE_UNIT=ascend910b " in Path(toolkit["RECORD"]).read_text()


def test_cmake_compiles_every_host_source_and_the_kernel_without_automatic_synchronisation() -> None:
    project = (_SCRIPT.parent / "CMakeLists.txt").read_text()
    for source in _SCRIPT.parent.glob("*.cpp"):
        assert f"/{source.name}\n" in project
    assert "npu_op_kernel_options(ascendc_kernels ALL OPTIONS --cce-auto-sync=off)" in project
    assert "${CMAKE_CURRENT_SOURCE_DIR}/../op_kernel\n" in project
