"""Building and keeping the CPU kernel, shown with a small source and the real compiler."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cpu.builds import STRANGER, answer, entries, needs_root
from tests.tiers import full
from toptheta_npu import TopThetaBackendError, TopThetaValueError, _compiler
from toptheta_npu.cpu import build, cache, instruction_sets

Script = Callable[..., Path]
Runs = Callable[[], int]


def kept(dtype: str, source: Path) -> build.Library | None:
    """As for `toptheta_npu.backend_info`."""
    try:
        compiler = _compiler.find_compiler()
    except TopThetaBackendError:
        compiler = None
    return build.kept_library(dtype, compiler, source=source)


def test_a_built_library_is_kept(
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(script()))
    library = build.library("float32", level, source=source)
    assert answer(library) == 42
    assert library.parent.parent == folder
    assert entries(folder) == [library.parent]
    assert library.parent.name.startswith(f"float32-{level}-")
    subprocess.run(["sha256sum", "--check", "--status", cache.SIDECAR], cwd=library.parent, check=True)
    assert build.library("float32", level, source=source) == library
    assert build.best_library("float32", source=source) == (library, level)
    assert runs() == 1


@pytest.mark.parametrize(("dtype", "element"), [("float32", 32), ("float16", 16), ("bfloat16", 17)])
def test_one_unit_per_dtype(dtype: str, element: int, source: Path, level: str, folder: Path) -> None:
    assert ctypes.CDLL(str(build.library(dtype, level, source=source))).element() == element


def test_nobody_else_may_write_what_is_kept(source: Path, level: str, folder: Path) -> None:
    before = os.umask(0)
    try:
        library = build.library("float32", level, source=source)
    finally:
        os.umask(before)
    for path in (folder, library.parent, library, library.with_name(cache.SIDECAR)):
        assert path.stat().st_mode & 0o022 == 0, path


def test_the_first_build_is_one_line_in_the_log(
    source: Path, level: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "toptheta_npu"):
        build.library("float16", level, source=source)
        build.library("float16", level, source=source)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith(f"building the CPU kernel for float16 ({level}) with ")
    assert record.getMessage().endswith(f"; it is kept in {folder}")


def _change_header(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.with_name("answer.h").write_text("enum Element { Float32, Float16, BFloat16 };\n")


def _change_included_header(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.with_name("inner.h").write_text("// changed\n")


def _change_flags(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-g"))


def _change_version(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "__version__", "another")


def _change_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shutil.copy(os.environ["CXX"], f"{os.environ['CXX']}-2")
    monkeypatch.setenv("CXX", other)


def _change_what_the_compiler_says(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Path(os.environ["CXX"])
    compiler.write_text(compiler.read_text().replace("12.2.0", "12.3.0"))


def _change_words_of_the_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -DOTHER")


@pytest.mark.parametrize(
    "change",
    [
        _change_header, _change_included_header, _change_flags, _change_version, _change_compiler,
        _change_what_the_compiler_says, _change_words_of_the_compiler,
    ],
)  # fmt: skip
def test_another_input_is_another_library(
    change: Callable[[Path, pytest.MonkeyPatch], None],
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("CXX", str(script()))
    first = build.library("float32", level, source=source)
    change(source, monkeypatch)
    assert build.library("float32", level, source=source) != first
    assert runs() == 2


def test_a_file_that_is_not_included_belongs_to_another_unit(source: Path, level: str, folder: Path) -> None:
    first = build.library("float32", level, source=source)
    source.with_name("other.cpp").write_text("broken")
    assert build.library("float32", level, source=source) == first


def test_what_is_compiled_is_what_was_read(source: Path, level: str, folder: Path, script: Script) -> None:
    """A source that changes during a build does not end up under the name of the old one."""
    compiler = script(f'echo broken > {source}; exec g++ "$@"')
    text = source.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        library = build.library("float32", level, source=source)
        assert source.read_text() == "broken\n"
        source.write_text(text)
        assert build.cache.checked_library(library.parent) == library
        assert answer(library) == 42


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
    source: Path, level: str, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets, "available", lambda: ("avx512_bf16", "avx512", "avx2"))
    refusal = "g++: error: unrecognized command line option '-mavx512bf16'"
    body = f'case "$*" in *-mavx512bf16*) echo "{refusal}" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", str(script(f'{body}\nexec g++ "$@"')))
    library, found = build.best_library("float32", source=source)
    assert found == "avx512"
    assert answer(library) == 42
    assert kept("float32", source) == (library, "avx512")
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx512_bf16")
    with pytest.raises(TopThetaBackendError) as caught:
        build.best_library("float32", source=source)
    assert str(caught.value) == (
        f"compiler: expected one that knows avx512_bf16, got g++ (made up) 12.2.0, {os.environ['CXX']}, which failed "
        f"with status 1: {refusal}; install a newer one (g++ 10 knows every level), "
        "or set TOPTHETA_CPU_LEVEL to another level"
    )


# Without building.


def test_kept_library_builds_nothing(
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(script()))
    assert kept("float32", source) is None
    assert runs() == 0
    assert not folder.exists()
    library = build.library("float32", level, source=source)
    assert kept("float32", source) == (library, level)
    assert kept("float16", source) is None


def test_without_a_compiler_what_another_machine_built_serves(
    source: Path, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a node of a cluster that has no compiler, over a shared home."""
    library = build.library("float32", level, source=source)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert build.library("float32", level, source=source) == library
    assert kept("float32", source) == (library, level)
    with pytest.raises(TopThetaBackendError, match=r"^compiler: expected g\+\+ or \$CXX, got /no/such/compiler; "):
        build.library("float16", level, source=source)


def test_where_nothing_can_be_built_a_lower_level_serves(
    source: Path, level: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = instruction_sets.available()
    if len(levels) < 2:
        pytest.skip("one level alone")
    library = build.library("float32", levels[-1], source=source)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert build.best_library("float32", source=source) == (library, levels[-1])


# What is kept is whole.


def _flip(library: Path) -> None:
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(content)


_SPOILT: dict[str, Callable[[Path], object]] = {
    "flipped": _flip,
    "truncated": lambda library: os.truncate(library, library.stat().st_size // 2),
    "empty": lambda library: os.truncate(library, 0),
    "no-library": Path.unlink,
    "no-sidecar": lambda library: library.with_name(cache.SIDECAR).unlink(),
    "empty-sidecar": lambda library: library.with_name(cache.SIDECAR).write_text(""),
    "binary-sidecar": lambda library: library.with_name(cache.SIDECAR).write_bytes(b"\xff\xfe"),
    "of-another": lambda library: library.with_name(cache.SIDECAR).write_text(f"{'0' * 64}  {cache.LIBRARY}\n"),
    "file": lambda library: (shutil.rmtree(library.parent), library.parent.touch()),
    "nothing": lambda library: shutil.rmtree(library.parent),
}


@pytest.mark.parametrize("spoil", _SPOILT.values(), ids=_SPOILT)
def test_a_spoilt_library_is_built_again(
    spoil: Callable[[Path], object],
    source: Path, level: str, folder: Path, script: Script, runs: Runs, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("CXX", str(script()))
    library = build.library("float32", level, source=source)
    spoil(library)
    assert kept("float32", source) is None
    assert build.library("float32", level, source=source) == library
    assert answer(library) == 42
    assert entries(folder) == [library.parent]
    assert runs() == 2


# Whose it is.


def _parts(library: Path) -> dict[str, Path]:
    sidecar = library.with_name(cache.SIDECAR)
    return {"folder": library.parents[1], "entry": library.parent, "library": library, "sidecar": sidecar}


@needs_root
@pytest.mark.parametrize("part", ["folder", "entry", "library", "sidecar"])
def test_what_belongs_to_another_user_is_refused(part: str, source: Path, level: str, folder: Path) -> None:
    path = _parts(build.library("float32", level, source=source))[part]
    os.chown(path, STRANGER, -1)
    for ask in (
        partial(build.library, "float32", level),
        partial(build.kept_library, "float32", _compiler.find_compiler()),
    ):
        with pytest.raises(TopThetaBackendError) as caught:
            ask(source=source)
        assert str(caught.value) == (
            f"cache: expected files of root, got {path}, which belongs to the user {STRANGER}; "
            f"remove it: rm -r {path}, or name another folder in TOPTHETA_CACHE"
        )


@pytest.mark.parametrize("part", ["folder", "entry", "library", "sidecar"])
@pytest.mark.parametrize("mode", [0o775, 0o777])
def test_what_others_may_write_is_refused(part: str, mode: int, source: Path, level: str, folder: Path) -> None:
    path = _parts(build.library("float32", level, source=source))[part]
    path.chmod(mode)
    with pytest.raises(TopThetaBackendError) as caught:
        build.library("float32", level, source=source)
    assert str(caught.value) == (
        f"cache: expected files that only you may write, got {path}, which other users may write; remove it: "
        f"rm -r {path}, or, if you trust what is in it: chmod -R go-w {path}, or name another folder in TOPTHETA_CACHE"
    )
    subprocess.run(["chmod", "-R", "go-w", str(path)], check=True)
    assert answer(build.library("float32", level, source=source)) == 42


def test_nothing_is_built_into_a_folder_that_others_may_write(source: Path, level: str, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(TopThetaBackendError, match="which other users may write"):
        build.library("float32", level, source=source)
    assert list(folder.iterdir()) == []


@needs_root
def test_what_root_has_built_serves_a_user(
    source: Path, level: str, open_folder: Path, become_user: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as in an image of a container; the folder cannot be written by the user."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(cache.VARIABLE, str(open_folder / "cache"))
    copied = shutil.copytree(source.parent, open_folder / "source") / source.name
    library = build.library("float32", level, source=copied)
    become_user()
    assert build.library("float32", level, source=copied) == library
    with pytest.raises(TopThetaBackendError, match=r"^cache: expected a folder that can be written, got Permission"):
        build.library("float16", level, source=copied)


# Where it is.


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


def test_a_relative_folder_is_that_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "kept")
    monkeypatch.chdir(tmp_path)
    assert cache.cache_folder() == tmp_path / "kept"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOPTHETA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as in a container that runs as a user it does not know
    with pytest.raises(TopThetaBackendError) as caught:
        cache.cache_folder()
    assert str(caught.value) == (
        "cache: expected a home folder to keep compiled code in, got none; name one in TOPTHETA_CACHE"
    )


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
