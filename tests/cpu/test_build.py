"""Building and keeping the CPU kernel, shown with a small source and the real compiler."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import platform
import pwd
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.tiers import full
from toptheta_npu import TopThetaBackendError, TopThetaValueError, _compiler
from toptheta_npu.cpu import build, cache, instruction_sets

Script = Callable[..., Path]
Runs = Callable[[], int]
_INSTALL = "install g++ 9 or newer, for example: apt-get install g++"
_fork = multiprocessing.get_context("fork")


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def refusal(source: Path, level: str) -> str:
    """What a build says that cannot be; it is one line, and leaves nothing behind."""
    with pytest.raises(TopThetaBackendError) as caught:
        build.library("float32", level, source=source)
    message = str(caught.value)
    assert "\n" not in message
    folder = cache.cache_folder()
    assert not folder.is_dir() or [file.name for file in folder.iterdir()] in ([], [".lock"])
    return message


def test_a_built_library_is_kept(
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("CXX", str(script()))
    assert build.kept_library("float32", source=source) is None
    assert not folder.exists()
    with caplog.at_level(logging.INFO, "toptheta_npu"):
        library = build.library("float32", level, source=source)
        assert build.library("float32", level, source=source) == library
    assert answer(library) == 42
    assert sorted(folder.iterdir()) == [folder / ".lock", library]
    assert build.best_library("float32", source=source) == (library, level)
    assert build.kept_library("float32", source=source) == (library, level)
    assert build.kept_library("float16", source=source) is None
    assert runs() == 1
    (line,) = caplog.messages
    assert line.startswith(f"building the CPU kernel for float32 ({level}) with ")
    assert line.endswith(f"; it is kept in {folder}")


@pytest.mark.parametrize(("dtype", "element"), [("float32", 32), ("float16", 16), ("bfloat16", 17)])
def test_one_unit_per_dtype(dtype: str, element: int, source: Path, level: str, folder: Path) -> None:
    assert ctypes.CDLL(str(build.library(dtype, level, source=source))).element() == element


@pytest.mark.parametrize("changed", ["unit.cpp", "answer.h", "inner.h", "flags"])
def test_another_input_is_another_library(
    changed: str, source: Path, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.library("float32", level, source=source)
    if changed == "flags":
        monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-g"))
    else:
        file = source.with_name(changed)
        file.write_text(f"{file.read_text()}// changed\n")
    assert build.library("float32", level, source=source) != first


def test_without_a_compiler_what_is_kept_serves(
    source: Path, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a node of a cluster that has no compiler, over a shared home, also one with a better CPU."""
    lowest = instruction_sets.available()[-1]
    library = build.library("float32", lowest, source=source)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert build.best_library("float32", source=source) == (library, lowest)
    with pytest.raises(TopThetaBackendError, match=r"^compiler: expected g\+\+ or \$CXX, got /no/such/compiler; "):
        build.best_library("float16", source=source)


def test_a_level_that_the_machine_does_not_run_is_never_handed_out(
    source: Path, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a home folder that several machines share."""
    build.library("float32", level, source=source)
    monkeypatch.setattr(instruction_sets, "cpu_flags", frozenset)
    for refused in (build.library, lambda *_, **__: build.best_library("float32", source=source)):
        with pytest.raises(TopThetaBackendError):
            refused("float32", level, source=source)
    with pytest.raises(TopThetaValueError, match=r"^level: expected one of .*, got 'sse2'$"):
        build.library("float32", "sse2", source=source)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
def test_a_compiler_older_than_the_cpu_gets_the_next_level(
    source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(instruction_sets, "available", lambda: ("avx512_bf16", "avx512", "avx2"))
    refused = "g++: error: unrecognized command line option '-mavx512bf16'"
    body = f'case "$*" in *-mavx512bf16*) echo "{refused}" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", str(script(f'{body}\nexec g++ "$@"')))
    library, found = build.best_library("float32", source=source)
    assert (answer(library), found) == (42, "avx512")
    assert build.kept_library("float32", source=source) == (library, "avx512")
    (line,) = caplog.messages
    assert line.startswith("the CPU kernel for float32 runs with avx512 alone: CPU kernel: expected it to compile")
    assert refused in line
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx512_bf16")
    with pytest.raises(TopThetaBackendError, match="unrecognized command line option"):
        build.best_library("float32", source=source)


# The compiler.


def test_source_that_does_not_compile(source: Path, level: str, folder: Path) -> None:
    source.write_text("int fine;\nint broken = text;\n" * 9)
    assert refusal(source, level) == (
        f"CPU kernel: expected it to compile, got {_compiler.find_compiler()}, which failed with status 1: "
        f"{source}:2:14: error: 'text' was not declared in this scope; {_INSTALL}, or name another compiler in CXX"
    )


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
    assert refusal(source, level) == f"compiler: expected g++ or $CXX, got none of g++, c++, clang++; {_INSTALL}"


def test_another_compiler_where_there_is_no_gxx(
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _compiler.find_compiler().command[0]
    compiler = script(f'PATH=/usr/bin:/bin exec {real} "$@"', "clang++")
    monkeypatch.setenv("PATH", str(compiler.parent))
    assert answer(build.library("float32", level, source=source)) == 42
    assert runs() == 1


def test_a_compiler_with_spaces_and_words(
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", f'"{script(name="my compiler")}" -g')
    build.library("float32", level, source=source)
    assert runs() == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 3", "failed with status 3"),
        ("kill -9 $$", "was ended by SIGKILL"),
        ("printf '\\377 %s\\n' $LC_ALL; exit 1", "failed with status 1: \ufffd C"),
    ],
)
def test_a_broken_compiler(
    body: str, reason: str, source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = script(body)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert refusal(source, level) == (
        f"CPU kernel: expected it to compile, got g++ (made up) 12.2.0, {compiler}, which {reason}; {_INSTALL}, "
        "or name another compiler in CXX"
    )
    script(body, answers="")
    assert refusal(source, level) == (
        f"compiler: expected one that works, got {compiler}, which {reason}; {_INSTALL}, or name another in CXX"
    )


def test_a_compiler_that_is_no_program(
    source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = script()
    compiler.write_text("neither a script nor a program")
    monkeypatch.setenv("CXX", str(compiler))
    assert f"got {compiler}, which does not start (Exec format error); {_INSTALL}" in refusal(source, level)


# Several at once, and the disk.


def _ask(source: Path, level: str, answers: multiprocessing.SimpleQueue[str]) -> None:
    answers.put(str(build.library("float32", level, source=source)))


def test_two_processes_build_once(
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(script('sleep 0.3; exec g++ "$@"')))
    answers: multiprocessing.SimpleQueue[str] = _fork.SimpleQueue()
    processes = [_fork.Process(target=_ask, args=(source, level, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    first, second = answers.get(), answers.get()
    for process in processes:
        process.join()
    assert first == second
    assert answer(Path(first)) == 42
    assert runs() == 1


def test_nobody_sees_half_a_library(
    source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while it is written nor after its compiler has failed."""
    begun = f'for last; do :; done; echo half > "$last"; ls {folder}/*.so; exit 1'
    monkeypatch.setenv("CXX", str(script(begun)))
    assert "No such file or directory" in refusal(source, level)


def test_a_folder_that_cannot_be_made(
    source: Path, level: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "cache"))
    assert refusal(source, level) == (
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
        ({"HOME": "/c"}, "/c/.cache/toptheta_npu"),
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


@full
def test_the_command_builds_every_dtype(
    source: Path, level: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "best_library", partial(build.best_library, source=source))
    monkeypatch.setattr(sys, "argv", ["build"])
    build.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["float32", "float16", "bfloat16"]
    assert all(Path(line.split(": ")[1]).is_file() for line in lines)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv(cache.VARIABLE, str(folder / "empty"))
    with pytest.raises(SystemExit, match=r"^build: compiler: expected g\+\+ or \$CXX, got /no/such/compiler; install"):
        build.main()
