"""run_kernel: arguments of every kind, launch options, mutation runs, building and caching."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

from emulator import compile_cache
from emulator.ascendc import (
    Argument,
    ArgumentError,
    CompileError,
    Kernel,
    KernelError,
    LaunchError,
    build_kernel,
    run_kernel,
    sanitizer_environment,
    sparse_array,
)

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "kernels" / "machine_run.cpp"


def kernel(entry: str) -> Kernel:
    return Kernel(SOURCE, entry=entry)


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.int64, np.uint8])
def test_numpy_arrays_are_read_and_written_in_place(dtype: Any) -> None:
    x = np.arange(64 // np.dtype(dtype).itemsize).astype(dtype)
    y = np.zeros_like(x)
    run_kernel(kernel("copy_64_bytes"), [("x", x, "in"), ("y", y, "out")]).require_clean()
    assert (y == x).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.uint8])
def test_torch_tensors_are_read_and_written_in_place(dtype: torch.dtype) -> None:
    x = torch.arange(64 // torch.empty(0, dtype=dtype).element_size()).to(dtype)
    y = torch.zeros_like(x)
    run_kernel(kernel("copy_64_bytes"), [("x", x, "in"), ("y", y, "out")]).require_clean()
    assert torch.equal(y, x)


@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_an_input_may_have_gaps(module: str) -> None:
    whole = np.arange(60, dtype=np.float32).reshape(6, 10)
    x: Any = (whole if module == "numpy" else torch.from_numpy(whole))[:, 3]
    y = np.zeros(6, np.float32)
    run = run_kernel(
        kernel("copy_strided"), [("x", x, "in"), ("y", y, "out"), ("tiling", struct.pack("3i", 4, 10, 6), "in")]
    )
    run.require_clean()
    assert (y == whole[:, 3]).all()
    too_far = run_kernel(
        kernel("copy_strided"), [("x", x, "in"), ("y", y, "out"), ("tiling", struct.pack("3i", 4, 11, 6), "in")]
    )
    assert too_far.checks == ["GmBounds"]


def test_none_is_a_null_pointer_and_options_reach_the_kernel() -> None:
    y = np.zeros(3, np.int32)
    run_kernel(kernel("describe"), [("y", y, "out"), ("z", None, "in")], blocks=3, tiling_key=5).require_clean()
    assert y.tolist() == [3, 5, 1]
    run_kernel(kernel("describe"), [("y", y, "out"), ("z", y.copy(), "in")]).require_clean()
    assert y.tolist() == [1, 0, 0]


def test_an_argument_may_be_updated_in_place() -> None:
    x = np.arange(64, dtype=np.uint8)
    run_kernel(kernel("add_one_in_place"), [("x", x, "inout")]).require_clean()
    assert (x == np.arange(1, 65)).all()


def test_outputs_and_workspace_start_as_garbage() -> None:
    y = torch.zeros(16)
    run = run_kernel(kernel("uninitialised_bytes"), [("w", 64, "workspace"), ("y", y, "out")])
    assert run.checks == ["GmUninitialised"]
    assert y.isnan().all()
    untouched = torch.zeros(16, dtype=torch.float16)
    run_kernel(kernel("copy_64_bytes"), [("x", torch.ones(16), "in"), ("y", torch.ones(16), "out")])
    run_kernel(kernel("describe"), [("y", np.zeros(3, np.int32), "out"), ("z", untouched, "out")])
    assert untouched.isnan().all()


def test_forty_arguments_arrive_in_order() -> None:
    arrays = [np.full(8, i, np.float32) for i in range(40)]
    arguments: list[Argument] = [(f"a{i}", array, "inout") for i, array in enumerate(arrays)]
    run_kernel(kernel("forty"), arguments).require_clean()
    assert [i for i, array in enumerate(arrays) if (array == 0).all()] == [0, 1, 39]
    with pytest.raises(LaunchError, match="at most 40, got 41"):
        run_kernel(kernel("forty"), [*arguments, ("a40", None, "in")])


def test_arguments_that_share_memory_are_one_buffer() -> None:
    x = np.arange(64, dtype=np.uint8)
    run = run_kernel(kernel("copy_64_bytes"), [("x", x, "inout"), ("y", x, "inout")])
    assert list(run.traffic) == ["x|y"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (("x", np.zeros(4), "output"), "x: expected one of the roles in, out, inout, workspace, got 'output'"),
        (("x", [1, 2], "in"), "x: expected a numpy array, .* got list"),
        (("x", b"12", "out"), "x: bytes cannot be written"),
        (("x", 64, "out"), "x: a number stands for that many bytes of workspace, got 64 as out"),
        (("x", np.zeros((4, 4))[:, :2], "out"), "x: expected a contiguous array for the role out"),
        (("x", np.zeros(4)[::-1], "in"), "x: expected strides that are not negative"),
        (("x", np.broadcast_to(np.zeros(4), (2, 4)), "inout"), "x: expected a writeable array"),
        (("x", torch.empty(4, device="meta"), "in"), "x: expected a CPU tensor, got one on meta"),
    ],
)
def test_arguments_that_cannot_be_passed(argument: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        run_kernel(kernel("copy_64_bytes"), [argument])


def test_two_arguments_may_not_have_one_name() -> None:
    with pytest.raises(ArgumentError, match="x: expected a name of its own for each argument, got it 2 times"):
        run_kernel(kernel("copy_64_bytes"), [("x", np.zeros(64), "in"), ("x", np.zeros(64), "out")])


# ---- huge memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [2**31 - 64, 2**31, 2**33 + 64])
def test_rows_may_lie_gigabytes_apart(gap: int) -> None:
    x = sparse_array(2**33 + 128, np.uint8)
    x[:64], x[gap : gap + 64] = 1, 2
    y = np.zeros((2, 64), np.uint8)
    arguments: list[Argument] = [("x", x, "in"), ("y", y, "out"), ("tiling", struct.pack("q", gap), "in")]
    run_kernel(kernel("far_rows"), arguments).require_clean()
    assert (y == [[1], [2]]).all()


def test_what_is_written_is_known_in_huge_memory_too() -> None:
    size = 2**33
    run = run_kernel(kernel("far_workspace"), [("w", size, "workspace"), ("tiling", struct.pack("q", size), "in")])
    (finding,) = run.findings
    assert finding.check == "GmUninitialised"
    assert f"w + {size - 96}," in finding.what


# ---- launch options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host_threads", [0, 1, 3])
def test_every_block_runs_once(host_threads: int) -> None:
    y = np.zeros(200, np.int32)
    run = run_kernel(kernel("block_indices"), [("y", y, "out")], blocks=200, host_threads=host_threads)
    assert run.require_clean().completed
    assert y.tolist() == list(range(200))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 0}, "blocks: expected at least 1, got 0"),
        ({"cores": 0}, "cores: expected at least 1, got 0"),
        ({"suppress": "machine_run.cpp"}, "suppress: expected FILE:LINE or FILE:LINE:KIND"),
        ({"suppress": "machine_run.cpp:x"}, "suppress: expected FILE:LINE"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        run_kernel(kernel("block_indices"), [("y", np.zeros(1, np.int32), "out")], **options)


def test_an_entry_that_does_not_exist() -> None:
    with pytest.raises(LaunchError, match='extern "C" machine_run in'):
        run_kernel(SOURCE, [])


def test_an_exception_of_the_kernel_is_a_finding() -> None:
    run = run_kernel(kernel("throws"), [("x", None, "in")])
    assert not run.completed
    assert run.checks == ["Exception"]
    assert "no such thing" in run.findings[0].what


def test_traffic_counts_bytes_and_commands_by_argument() -> None:
    x, y = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    traffic = run_kernel(kernel("copy_64_bytes"), [("x", x, "in"), ("y", y, "out")], blocks=1).traffic
    assert (traffic["x"].bytes_read, traffic["x"].read_commands, traffic["x"].bytes_written) == (64, 1, 0)
    assert (traffic["y"].bytes_written, traffic["y"].write_commands, traffic["y"].bytes_read) == (64, 1, 0)


# ---- findings and mutation runs --------------------------------------------------------------------------------------


def run_flags(**options: Any) -> Any:
    x, y = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    return run_kernel(kernel("flags_on_one_line"), [("x", x, "in"), ("y", y, "out")], **options)


def test_sync_sites_list_what_was_executed() -> None:
    run = run_flags(blocks=1).require_clean()
    kinds = [(site.kind, site.count) for site in run.sync_sites]
    assert kinds == [("SetFlag", 1), ("WaitFlag", 1), ("PipeBarrier", 1), ("SetFlag", 1), ("WaitFlag", 1)]
    assert run.sync_sites[0].line == run.sync_sites[1].line
    assert run.sync_sites[2].name == f"machine_run.cpp:{run.sync_sites[2].line}:PipeBarrier"


def test_a_suppressed_site_does_nothing_in_this_run() -> None:
    set_flag, wait_flag, barrier, *_ = run_flags().sync_sites
    assert run_flags(suppress=set_flag.name).checks == ["WaitWithoutSet"]
    assert run_flags(suppress=wait_flag.name).checks == ["FlagNeverWaited", "ReadAfterWrite", "WriteAfterWrite"]
    both = f"machine_run.cpp:{set_flag.line}"
    assert run_flags(suppress=both).checks == ["ReadAfterWrite", "WriteAfterWrite"]
    assert run_flags(suppress=[set_flag.name, wait_flag.name]).checks == ["ReadAfterWrite", "WriteAfterWrite"]
    assert run_flags(suppress=f"kernels/{both}:WaitFlag").checks == run_flags(suppress=wait_flag.name).checks
    assert run_flags(suppress=barrier.name).findings == []  # nothing follows it that needs it
    for other in (f"run.cpp:{set_flag.line}", f"other.cpp:{set_flag.line}", f"{both}:SyncAll"):
        assert run_flags(suppress=other).findings == []


def test_require_clean_lists_the_findings() -> None:
    wait = run_flags().sync_sites[1]
    with pytest.raises(KernelError, match=r"machine_run.cpp:\d+: Increment: \[ReadAfterWrite\]") as error:
        run_flags(suppress=wait.name).require_clean(allow=["WriteAfterWrite"])
    assert [finding.check for finding in error.value.findings] == ["ReadAfterWrite", "FlagNeverWaited"]


# ---- building --------------------------------------------------------------------------------------------------------

TINY = """
#include <cstdint>
#include "value.h"
extern "C" int32_t value() { return VALUE; }
extern "C" void tiny(uint8_t*) {}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Kernel:
    (tmp_path / "tiny.cpp").write_text(TINY)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "value.h").write_text("")
    make_old(tmp_path)
    return Kernel(tmp_path / "tiny.cpp", include_dirs=[tmp_path / "include"], defines={"VALUE": "1"})


def make_old(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))


def test_a_library_is_built_again_only_when_something_changes(tiny: Kernel, tmp_path: Path) -> None:
    first = build_kernel(tiny)
    made = first.stat().st_mtime_ns
    assert build_kernel(tiny) == first
    assert first.stat().st_mtime_ns == made
    header = tmp_path / "include" / "value.h"
    header.write_text("// changed")
    second = build_kernel(tiny)
    assert second != first
    header.write_text("")
    assert build_kernel(tiny) == first
    assert first.stat().st_mtime_ns == made
    other = Kernel(tiny.source, include_dirs=tiny.include_dirs, defines={"VALUE": "2"})
    assert build_kernel(other) not in (first, second)


def test_two_processes_may_build_at_once(tiny: Kernel) -> None:
    code = (
        "from emulator.ascendc import Kernel, build_kernel\n"
        f"print(build_kernel(Kernel({str(tiny.source)!r}, include_dirs=[{str(tiny.include_dirs[0])!r}], "
        "defines={'VALUE': '3'})))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    libraries = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(libraries) == 1
    assert Path(libraries.pop()).is_file()


def test_compiler_errors_carry_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []  # other processes build beside this one

    def make_folder(**options: Any) -> str:
        made.append(Path(mkdtemp(**options)))
        return str(made[-1])

    monkeypatch.setattr(compile_cache.tempfile, "mkdtemp", make_folder)
    source = tmp_path / "broken.cpp"
    source.write_text("int broken = no_such_name;\n")
    with pytest.raises(CompileError, match="no_such_name") as error:
        build_kernel(Kernel(source))
    assert error.value.command[0] == "g++"
    assert str(source) in error.value.command
    assert {folder.parent for folder in made} == {compile_cache.CACHE}
    assert not any(folder.exists() for folder in made)


def test_missing_files_and_compilers_are_named(tmp_path: Path, tiny: Kernel) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.cpp"):
        build_kernel(Kernel(tmp_path / "none.cpp"))
    with pytest.raises(FileNotFoundError, match="got 'no-such-compiler'"):
        build_kernel(Kernel(tiny.source, compiler="no-such-compiler"))


@pytest.mark.full
@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_clang_gives_the_same_result() -> None:
    x, y = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    clang = Kernel(SOURCE, entry="copy_64_bytes", compiler="clang++")
    run_kernel(clang, [("x", x, "in"), ("y", y, "out")]).require_clean()
    assert (y == x).all()


@pytest.mark.long
def test_sanitizers_find_nothing_in_the_machine() -> None:
    code = (
        "import numpy as np\n"
        "from emulator.ascendc import Kernel, run_kernel\n"
        "x = np.arange(64, dtype=np.uint8)\n"
        f"checks = lambda source, entry, blocks: run_kernel(Kernel(source, entry=entry, sanitize=True),"
        " [('x', x, 'inout'), ('y', x.copy(), 'out'), ('w', 4096, 'workspace')], blocks=blocks)\n"
        f"run = checks({str(SOURCE)!r}, 'copy_64_bytes', 1)\n"
        "run.timeline(), run.timeline('hot'), run.write_trace('/dev/null')\n"
        f"found = checks({str(SOURCE.with_name('machine_cores.cpp'))!r}, 'sync_all_count', 4).checks\n"
        "print(run.checks, found)"
    )
    environment = {**os.environ, **sanitizer_environment()}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] ['SyncAllCount']"
