"""Other systems and locales: Windows, a /proc that cannot be read, and file names that no encoding decodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toptheta_npu.cpu import threads

_ROOT = Path(__file__).parents[1]
#: What Windows lacks is taken away, once torch for Linux is imported.
_LIKE_WINDOWS = """
import builtins, io, os, sys
import torch

for name in ("fork", "register_at_fork", "sysconf", "getuid"):
    delattr(os, name)
for name in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[name] = None

def without_proc(function):
    def call(path, *arguments, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/proc"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return function(path, *arguments, **options)
    return call

io.open = builtins.open = without_proc(open)
os.open, os.stat = without_proc(os.open), without_proc(os.stat)
"""
_CALL = """
import torch, toptheta_npu, toptheta_npu.cli
query, cache = torch.ones(1, 2, 1, 16), torch.ones(1, 1, 4, 16)
print(toptheta_npu.incremental_attention(query, cache, cache, torch.zeros(2)).sum().item())
"""
_DOCTOR = "\nimport sys\nsys.argv = ['toptheta', 'doctor', '--no-probe']\nimport toptheta_npu.__main__"


def python(code: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, cwd=_ROOT, capture_output=True, check=False
    )


def test_a_system_without_fork_runs_the_fallback_and_says_so() -> None:
    done = python(_LIKE_WINDOWS + _CALL, TOPTHETA_BACKEND="")
    assert done.stderr.decode().splitlines() == [
        "toptheta_npu runs its PyTorch fallback on the CPU: CPU: expected AVX2, FMA and F16C on x86-64 or FP16 "
        f"arithmetic on aarch64, in /proc/cpuinfo, got {os.uname().sysname} on {os.uname().machine}, which lists "
        "nothing; run the PyTorch fallback: set TOPTHETA_BACKEND to cpu=fallback"
    ]
    assert done.stdout == b"32.0\n"


def test_the_doctor_of_a_system_without_fork() -> None:
    done = python(_LIKE_WINDOWS + _DOCTOR)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"PyTorch fallback" in done.stdout


@pytest.fixture
def mapped(tmp_path: Path) -> str:
    """Code that maps a file whose name is in no encoding. The file is named like a library, and is none."""
    folder = os.fsencode(tmp_path) + b"/\xff\xe4"
    os.mkdir(folder)
    path = folder + b"/data.bin"
    with open(path, "wb") as file:
        file.write(bytes(4096))
    return f"import mmap\nfile = open({path!r}, 'rb')\nmapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"


@pytest.mark.parametrize("variables", [{"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}], ids=str)
def test_a_mapped_file_of_any_name(variables: dict[str, str], mapped: str) -> None:
    done = python(mapped + _CALL + _DOCTOR, **variables)
    assert (done.returncode, done.stdout[:5]) == (0, b"32.0\n")
    assert b"Traceback" not in done.stderr


def test_a_runtime_in_a_folder_of_any_name_is_found(tmp_path: Path) -> None:
    if not (runtimes := threads.loaded_runtimes()):
        pytest.skip("PyTorch has loaded no OpenMP runtime")
    copy = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")) / "libgomp.so.1"
    copy.parent.mkdir()
    shutil.copy(runtimes[0], copy)
    code = f"""
import ctypes, os, sys
ctypes.CDLL({str(copy)!r})  # before PyTorch's, as in an environment in such a folder
from toptheta_npu.cpu import threads
assert threads.run_in_parallel() != 0
sys.stdout.buffer.write(os.fsencode(threads.loaded_runtimes()[0]))
"""
    done = python(code, LC_ALL="C.UTF-8")
    assert (done.stdout, done.stderr) == (os.fsencode(copy), b"")


def test_clones_on_windows_have_the_same_bytes() -> None:
    """Whatever core.autocrlf says: shells and compilers read no script with carriage returns."""
    listed = subprocess.run(["git", "ls-files", "--eol"], cwd=_ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone")
    fields = [line.split(b"\t")[0].split() for line in listed.stdout.splitlines()]
    assert {(index, tuple(attributes)) for index, _, *attributes in fields if index in (b"i/lf", b"i/-text")} == {
        (b"i/lf", (b"attr/text=auto", b"eol=lf")), (b"i/-text", (b"attr/-text",)),
    }  # fmt: skip
    assert b"i/crlf" not in listed.stdout
    assert b"i/mixed" not in listed.stdout
