"""Building and keeping the CPU kernel, shown with a small source and the real compiler."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import pwd
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from toptheta_npu import TopThetaBackendError, _compiler
from toptheta_npu.cpu import build, cache, instruction_sets

Script = Callable[..., Path]
Runs = Callable[[], int]
_INSTALL = "install g++ 9 or newer, for example: apt-get install g++"
_fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.usefixtures("source", "folder")


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def refusal() -> str:
    """What a build says that cannot be; it is one line, and leaves nothing behind."""
    with pytest.raises(TopThetaBackendError) as caught:
        build.library("float32")
    message = str(caught.value)
    assert "\n" not in message
    folder = cache.cache_folder()
    assert not folder.is_dir() or [file.name for file in folder.iterdir()] in ([], [".lock"])
    return message


def test_a_built_library_is_kept(
    level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("CXX", str(script()))
    assert build.kept_library("float32") is None
    assert not folder.exists()
    with caplog.at_level(logging.INFO, "toptheta_npu"):
        library = build.library("float32")
    assert answer(library) == 42
    assert sorted(folder.iterdir()) == [folder / ".lock", library]
    (line,) = caplog.messages
    assert line.startswith(f"building the CPU kernel for float32 ({level}) with ")
    assert line.endswith(f"; it is kept in {folder}")
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert build.library("float32") == build.kept_library("float32") == library
    assert build.kept_library("float16") is None
    assert runs() == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:5000] + bytes(4096) + whole[9096:],
        lambda whole: bytes(len(whole)),
        lambda whole: b"",
    ],
    ids=["cut short", "a page of zeros", "zeros", "empty"],
)
def test_a_damaged_library_is_built_again_once(
    damage: Callable[[bytes], bytes], folder: Path, runs: Runs, script: Script, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """As after a power loss. Loading it would end the process with a bus error or a segmentation fault."""
    monkeypatch.setenv("CXX", str(script()))
    library = build.library("float32")
    whole = library.read_bytes()
    library.unlink()  # the linker's own file may be mapped
    library.write_bytes(damage(whole))
    assert build.kept_library("float32") is None
    for _ in range(2):
        assert build.library("float32") == library
    assert answer(library) == 42
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"the CPU kernel kept as {library} is damaged; it is built again"
    ]
    assert runs() == 2
    assert sorted(folder.iterdir()) == [folder / ".lock", library]


def test_a_library_is_on_the_disk_before_it_has_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    flush = os.fsync

    def note(descriptor: int) -> None:
        flush(descriptor)
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        assert bool(list(folder.glob("*.so"))) == (flushed[-1] == folder)

    monkeypatch.setattr(os, "fsync", note)
    library = build.library("float32")
    assert [path.name for path in flushed] == [library.name, folder.name]


@pytest.mark.parametrize(("dtype", "element"), [("float32", 32), ("float16", 16), ("bfloat16", 17)])
def test_one_unit_per_dtype(dtype: str, element: int) -> None:
    assert ctypes.CDLL(str(build.library(dtype))).element() == element


@pytest.mark.parametrize("changed", ["unit.cpp", "answer.h", "inner.h", "flags", "level"])
def test_another_input_is_another_library(changed: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.library("float32")
    if changed == "flags":
        monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-g"))
    elif changed == "level":
        *_, least = instruction_sets.available()
        if least == instruction_sets.chosen().name:
            pytest.skip("this machine runs one level alone")
        monkeypatch.setenv(instruction_sets.VARIABLE, least)
    else:
        file = source.with_name(changed)
        file.write_text(f"{file.read_text()}// changed\n")
    assert build.library("float32") != first


def test_a_level_that_the_machine_does_not_run_is_never_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a home folder that several machines share."""
    build.library("float32")
    monkeypatch.setattr(instruction_sets, "cpu_flags", frozenset)
    with pytest.raises(TopThetaBackendError, match=r"^CPU: expected"):
        build.library("float32")


# The compiler.


def test_source_that_does_not_compile(source: Path) -> None:
    source.write_text("int fine;\nint broken = text;\n" * 9)
    assert refusal() == (
        f"CPU kernel: expected it to compile, got {_compiler.find_compiler()}, which failed with status 1: "
        f"{source}:2:14: error: 'text' was not declared in this scope; {_INSTALL}, or name another compiler in CXX or "
        "a lesser level in TOPTHETA_CPU_LEVEL"
    )


@pytest.mark.parametrize("named", ["/no/such/compiler", "no-such-compiler -O2", "g++ 'unclosed"])
def test_a_named_compiler_that_is_missing(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", named)
    assert refusal() == f"compiler: expected g++ or $CXX, got {named}; {_INSTALL}, or unset CXX"


def test_no_compiler_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal() == f"compiler: expected g++ or $CXX, got none of g++, c++, clang++; {_INSTALL}"


def test_another_compiler_where_there_is_no_gxx(script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _compiler.find_compiler().command[0]
    compiler = script(f'PATH=/usr/bin:/bin exec {real} "$@"', "clang++")
    monkeypatch.setenv("PATH", str(compiler.parent))
    assert answer(build.library("float32")) == 42
    assert runs() == 1


def test_a_compiler_with_spaces_and_words(script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f'"{script(name="my compiler")}" -g')
    build.library("float32")
    assert runs() == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 3", "failed with status 3"),
        ("printf '\\377 %s\\n' $LC_ALL; exit 1", "failed with status 1: \ufffd C"),
    ],
)
def test_a_broken_compiler(body: str, reason: str, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = script(body)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert f"got g++ (made up) 12.2.0, {compiler}, which {reason}; {_INSTALL}" in refusal()
    script(body, answers="")
    assert refusal() == (
        f"compiler: expected one that works, got {compiler}, which {reason}; {_INSTALL}, or name another in CXX"
    )


@pytest.mark.parametrize("step", ["-shared", "-S"])
def test_a_full_disk_is_named_as_such(
    step: str, folder: Path, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the linker and of the compiler, as g++ reports it."""
    arguments = '"$@"' if step == "-shared" else "-S -DTOPTHETA_ELEMENT=1"
    body = f"for last; do :; done; exec g++ {arguments} {build.SOURCE} -o /dev/full"
    monkeypatch.setenv("CXX", str(script(body)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    message = refusal()
    assert "No space left on device" in message
    assert message.endswith(f"; free some space in {folder} and {tmp_path}")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("ld: a.o: in function f:\na.cpp:1: undefined reference to g\ncollect2: error: ld returned 1 exit status",
         "ld: a.o: in function f: / a.cpp:1: undefined reference to g / collect2: error: ld returned 1 exit status; "
         f"{_INSTALL}, or name another compiler in CXX"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "cc1plus; free some memory, and try again"),
    ],
)  # fmt: skip
def test_what_the_linker_says_is_shown(
    said: str, shown: str, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").write_text(said)
    monkeypatch.setenv("CXX", str(script(f"cat {tmp_path}/said; exit 1")))
    assert shown in refusal()


def test_a_compiler_that_is_no_program(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = script()
    compiler.write_text("neither a script nor a program")
    monkeypatch.setenv("CXX", str(compiler))
    assert f"got {compiler}, which does not start (Exec format error); {_INSTALL}" in refusal()


# Several at once, and the disk.


def _ask(answers: multiprocessing.SimpleQueue[str]) -> None:
    answers.put(str(build.library("float32")))


def test_two_processes_build_once(script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(script('sleep 0.3; exec g++ "$@"')))
    answers: multiprocessing.SimpleQueue[str] = _fork.SimpleQueue()
    processes = [_fork.Process(target=_ask, args=(answers,)) for _ in range(2)]
    for process in processes:
        process.start()
    first, second = answers.get(), answers.get()
    for process in processes:
        process.join()
    assert first == second
    assert answer(Path(first)) == 42
    assert runs() == 1


def test_nobody_sees_half_a_library(folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while it is written nor after its compiler has failed."""
    begun = f'for last; do :; done; echo half > "$last"; ls {folder}/*.so; exit 1'
    monkeypatch.setenv("CXX", str(script(begun)))
    assert "No such file or directory" in refusal()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "cache"))
    assert refusal() == (
        f"cache: expected a folder that can be written, got Not a directory at {tmp_path / 'file' / 'cache'}; "
        "free some space there, or name another folder in TOPTHETA_CACHE"
    )


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TOPTHETA_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"TOPTHETA_CACHE": "~/a", "HOME": "/c"}, "/c/a"),
        ({"TOPTHETA_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/toptheta_npu"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/toptheta_npu"),
    ],
)
def test_the_folder(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOPTHETA_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(cache.cache_folder()) == expected


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOPTHETA_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as in a container that runs as a user it does not know
    with pytest.raises(TopThetaBackendError, match=r"^cache: expected a home folder .*; name one in TOPTHETA_CACHE$"):
        cache.cache_folder()


def test_the_command_builds_every_dtype(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["build"])
    build.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["float32", "float16", "bfloat16"]
    assert all(Path(line.split(": ")[1]).is_file() for line in lines)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv(cache.VARIABLE, str(folder / "empty"))
    with pytest.raises(SystemExit, match=r"^build: compiler: expected g\+\+ or \$CXX, got /no/such/compiler; install"):
        build.main()
