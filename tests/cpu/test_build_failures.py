"""Builds of the CPU kernel that fail, are killed, or meet each other."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cpu.builds import answer, entries
from toptheta_npu import TopThetaBackendError, _compiler
from toptheta_npu.cpu import build, cache

Script = Callable[..., Path]
Runs = Callable[[], int]
_INSTALL = "install g++ 9 or newer, for example: apt-get install g++"
_fork = multiprocessing.get_context("fork")


def refusal(source: Path, level: str) -> str:
    """What a build says that cannot be; it is one line, and leaves nothing behind."""
    with pytest.raises(TopThetaBackendError) as caught:
        build.library("float32", level, source=source)
    message = str(caught.value)
    assert "\n" not in message
    assert message == f"{caught.value.problem}; {caught.value.remedy}"
    folder = cache.cache_folder()
    assert not folder.is_dir() or entries(folder) == []
    return message


def ends(process: int) -> bool:
    """Whether a process that was killed is gone, or about to be."""
    state = Path(f"/proc/{process}/stat")
    for _ in range(500):
        try:
            if state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


# The compiler.


def test_source_that_does_not_compile(source: Path, level: str, folder: Path) -> None:
    source.write_text("int fine;\nint broken = text;\n" * 9)
    message = refusal(source, level)
    compiler = _compiler.find_compiler()
    assert message == (
        f"CPU kernel: expected it to compile, got {compiler}, which failed with status 1: "
        f"unit.cpp:2:14: error: 'text' was not declared in this scope; {_INSTALL}, or name another compiler in CXX"
    )
    source.write_text('extern "C" __attribute__((visibility("default"))) int answer() { return 43; }\n')
    assert answer(build.library("float32", level, source=source)) == 43


def test_all_that_the_compiler_said_is_the_cause(source: Path, level: str, folder: Path) -> None:
    source.write_text("int broken = text;\nint again = text;\n")
    with pytest.raises(TopThetaBackendError) as caught:
        build.library("float32", level, source=source)
    assert isinstance(caught.value.__cause__, _compiler.CompilerFailure)
    assert "unit.cpp:2:13: error" in str(caught.value.__cause__)


def test_messages_are_in_english(
    source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(script('echo "error: $LC_ALL"; exit 1')))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert "which failed with status 1: error: C; " in refusal(source, level)


def test_temporary_files_are_kept_beside_the_library(
    source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what a killed compiler leaves is removed some time, and one disk alone has to have room."""
    monkeypatch.setenv("CXX", str(script('echo "error: $TMPDIR"; exit 1')))
    assert f": error: {folder}/" in refusal(source, level)


@pytest.mark.parametrize("named", ["/no/such/compiler", "no-such-compiler -O2", "g++ 'unclosed"])
def test_a_named_compiler_that_is_missing(
    named: str, source: Path, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", named)
    assert refusal(source, level) == f"compiler: expected g++ or $CXX, got {named}; {_INSTALL}, or unset CXX"


def test_no_compiler_at_all(
    source: Path, level: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal(source, level) == (f"compiler: expected g++ or $CXX, got none of g++, c++, clang++; {_INSTALL}")


@pytest.mark.parametrize("name", ["c++", "clang++"])
def test_another_compiler_where_there_is_no_gxx(
    name: str, source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _compiler.find_compiler().command[0]
    compiler = script(f'PATH=/usr/bin:/bin exec {real} "$@"', name)
    monkeypatch.setenv("PATH", str(compiler.parent))
    assert answer(build.library("float32", level, source=source)) == 42
    assert runs() == 1


def test_a_compiler_with_spaces_and_one_with_words(
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = script(name="my compiler")
    monkeypatch.setenv("CXX", str(spaced))
    build.library("float32", level, source=source)
    monkeypatch.setenv("CXX", f'"{spaced}" -g')
    build.library("float32", level, source=source)
    assert runs() == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 3", "failed with status 3"),
        ("echo nothing known; exit 1", "failed with status 1: nothing known"),
        ("kill -9 $$", "was ended by SIGKILL"),
        ("echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
         "failed with status 1: g++: fatal error: Killed signal terminated program cc1plus"),
        ("printf '\\377\\n'; exit 1", "failed with status 1: \ufffd"),
    ],
)  # fmt: skip
def test_a_broken_compiler(
    body: str, reason: str,
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    compiler = script(body)
    monkeypatch.setenv("CXX", str(compiler))
    assert refusal(source, level) == (
        f"CPU kernel: expected it to compile, got g++ (made up) 12.2.0, {compiler}, which {reason}; {_INSTALL}, "
        "or name another compiler in CXX"
    )
    with pytest.raises(TopThetaBackendError, match=r"^CPU kernel: expected it to compile"):
        build.best_library("float32", source=source)
    assert runs() == 2, "no lower level is tried"
    script(body, answers="")
    assert refusal(source, level) == (
        f"compiler: expected one that works, got {compiler}, which {reason}; {_INSTALL}, or name another in CXX"
    )


def test_a_compiler_that_writes_nothing(
    source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = script("exit 0")
    monkeypatch.setenv("CXX", str(compiler))
    assert refusal(source, level) == (
        f"compiler: expected one that writes a library, got g++ (made up) 12.2.0, {compiler}, which wrote none; "
        f"{_INSTALL}"
    )


def test_a_compiler_that_is_no_program(
    source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = script()
    compiler.write_text("neither a script nor a program")
    monkeypatch.setenv("CXX", str(compiler))
    assert f"got {compiler}, which does not start (Exec format error); {_INSTALL}" in refusal(source, level)


@pytest.mark.parametrize("answers", ["g++ (made up) 12.2.0", ""], ids=["compiling", "asked for its version"])
def test_a_hanging_compiler_is_ended_with_all_that_it_started(
    answers: str,
    source: Path,
    level: str,
    folder: Path,
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "_BUILD_SECONDS", 0.3)
    monkeypatch.setattr(_compiler, "_ANSWER_SECONDS", 0.3)
    # as g++ does, it waits for another process, which holds its output open
    compiler = script(f"sleep 1000 & echo $! > {tmp_path}/child; wait", answers=answers)
    monkeypatch.setenv("CXX", str(compiler))
    assert "which did not end within 0.3 s; " in refusal(source, level)
    assert ends(int((tmp_path / "child").read_text()))


# The disk.


def test_a_folder_below_a_file(
    source: Path, level: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for name, reason in (("file/cache", "Not a directory"), ("file", "File exists")):
        monkeypatch.setenv(cache.VARIABLE, str(tmp_path / name))
        with pytest.raises(TopThetaBackendError) as caught:
            build.library("float32", level, source=source)
        assert str(caught.value) == (
            f"cache: expected a folder that can be written, got {reason} at {tmp_path / name}; "
            "name another folder in TOPTHETA_CACHE"
        )


def test_a_folder_that_may_not_be_written(
    source: Path, level: str, open_folder: Path, become_user: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = open_folder / source.name
    copied.write_text("int answer;\n")
    open_folder.chmod(0o555)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(cache.VARIABLE, str(open_folder / "cache"))
    become_user()
    with pytest.raises(TopThetaBackendError) as caught:
        build.library("float32", level, source=copied)
    assert str(caught.value) == (
        f"cache: expected a folder that can be written, got Permission denied at {open_folder / 'cache'}; "
        "name another folder in TOPTHETA_CACHE"
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the sources and not for a library."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(source: Path, level: str, folder: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(small_disk / "cache"))
    assert refusal(source, level) == (
        f"cache: expected room for a megabyte, got No space left on device at {small_disk / 'cache'}; free some space, "
        "or name another folder in TOPTHETA_CACHE"
    )


@pytest.mark.parametrize("limit", [4, 4096], ids=["sources", "library"])
def test_a_limit_on_the_size_of_files(limit: int, source: Path, level: str, folder: Path) -> None:
    """Met by Python when it writes the sources, or by the compiler."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(TopThetaBackendError) as caught:
            build.library("float32", level, source=source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    reason = "File too large" if limit == 4 else "File size limit exceeded"
    assert str(caught.value) == (
        f"cache: expected room for a megabyte, got {reason} at {folder}; free some space, or name another folder in "
        "TOPTHETA_CACHE"
    )
    assert entries(folder) == []


# Several at once.


def _ask(source: Path, level: str, answers: multiprocessing.SimpleQueue[str]) -> None:
    answers.put(str(build.library("float32", level, source=source)))


def ask_at_once(source: Path, level: str, count: int) -> list[str]:
    """The libraries that as many processes get."""
    answers: multiprocessing.SimpleQueue[str] = _fork.SimpleQueue()
    processes = [_fork.Process(target=_ask, args=(source, level, answers)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return [answers.get() for _ in processes]


def test_two_processes_build_once(
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(script('sleep 0.3; exec g++ "$@"')))
    first, second = ask_at_once(source, level, 2)
    assert first == second
    assert answer(Path(first)) == 42
    assert runs() == 1


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("spoilt", [False, True])
def test_without_locks_all_build_and_all_is_well(
    spoilt: bool,
    source: Path, level: str, folder: Path, script: Script, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(fcntl, "flock", _no_locks)
    built = 0
    if spoilt:
        monkeypatch.setenv("CXX", str(script()))
        build.library("float32", level, source=source).unlink()
        built = 1
    # all wait for each other, and no two results are the same
    wait = f"while [ $(wc -l < {tmp_path}/runs) -lt {built + 3} ]; do sleep 0.01; done"
    monkeypatch.setenv("CXX", str(script(f'{wait}; exec g++ -DONLY=$$ -g3 "$@"')))
    libraries = ask_at_once(source, level, 3)
    assert len(set(libraries)) == 1
    assert cache.checked_library(Path(libraries[0]).parent) == Path(libraries[0])
    assert answer(Path(libraries[0])) == 42
    assert entries(folder) == [Path(libraries[0]).parent]
    assert runs() == built + 3


def test_a_whole_library_is_not_replaced(source: Path, level: str, folder: Path, tmp_path: Path) -> None:
    """Where there are no locks: its path may have been handed out."""
    library = build.library("float32", level, source=source)
    before = library.stat().st_ino
    late = tmp_path / "late"
    late.mkdir()
    (late / cache.LIBRARY).write_text("another")
    cache.put_in_place(cache.finish(late / cache.LIBRARY), library.parent)
    assert library.stat().st_ino == before


def test_a_lock_that_is_held_too_long_is_passed(
    source: Path, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.1)
    folder.mkdir()
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert answer(build.library("float32", level, source=source)) == 42


def test_a_killed_build_leaves_nothing_that_matters(
    source: Path, level: str, folder: Path, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it has begun to write the library, and writes on when its caller is gone
    begun = f'for last; do :; done; echo half > "$last"; echo $$ > {tmp_path}/pid; exec sleep 1000'
    script(begun)
    monkeypatch.setenv("CXX", str(tmp_path / "bin" / "compiler"))
    process = _fork.Process(target=_ask, args=(source, level, _fork.SimpleQueue()))
    process.start()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    (left,) = entries(folder)
    assert (left / "entry" / cache.LIBRARY).read_text() == "half\n"

    script()
    library = build.library("float32", level, source=source)
    assert answer(library) == 42
    assert entries(folder) == sorted([left, library.parent]), "it might still be at work"
    long_ago = time.time() - 2 * 3600
    os.utime(left, (long_ago, long_ago))
    other = build.library("float16", level, source=source)
    assert entries(folder) == sorted([library.parent, other.parent])


def test_an_interrupted_build_ends_the_compiler(
    source: Path, level: str, folder: Path, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "CXX", str(script(f"echo $$ > {tmp_path}/pid; sleep 0.2; kill -INT {os.getpid()}; exec sleep 1000"))
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            build.library("float32", level, source=source)
    finally:
        signal.signal(signal.SIGINT, before)
    assert entries(folder) == []
    assert ends(int((tmp_path / "pid").read_text()))
