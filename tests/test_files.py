"""Whole files and folders: written at once or not at all, whoever else writes, and whatever goes wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toptheta_npu._files import check_writable, held, new_folder, read_bytes, status, write_atomically
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder which holds, after the test, nothing but files that the test itself names."""
    yield tmp_path
    assert not [path.name for path in tmp_path.rglob(".*")], "something was left behind"


def test_bytes_and_text_arrive_whole(folder: Path) -> None:
    write_atomically(folder / "bytes", b"\x00\xff")
    write_atomically(str(folder / "text"), "κ~/k")
    assert read_bytes(folder / "bytes", "a table", 2) == b"\x00\xff"
    assert (folder / "text").read_text(encoding="utf-8") == "κ~/k"


def test_modes_and_links_stay(folder: Path) -> None:
    (folder / "file").write_text("old")
    (folder / "file").chmod(0o600)
    (folder / "link").symlink_to("file")
    (folder / "dangling").symlink_to("later")
    write_atomically(folder / "link", "new")
    write_atomically(folder / "dangling", "first")
    assert ((folder / "file").read_text(), stat.S_IMODE((folder / "file").stat().st_mode)) == ("new", 0o600)
    assert (folder / "later").read_text() == "first"
    assert all((folder / name).is_symlink() for name in ("link", "dangling"))
    (folder / "usual").touch()
    assert (folder / "later").stat().st_mode == (folder / "usual").stat().st_mode


def use_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda folder: folder, "expected the name of a file, got a folder; name a file in it"),
        (lambda folder: Path("/dev/full"), "expected the name of a file, got a device or pipe; name a file"),
        (use_pipe, "got a device or pipe"),
        (lambda folder: folder / "none" / "file", "a file in an existing folder, got no such folder; create .*none$"),
        (lambda folder: folder / ("n" * 300), "File name too long"),
        (lambda folder: "nu\0ll", "path: expected a path without null characters"),
    ],
)
@pytest.mark.parametrize(
    "use", [lambda path: write_atomically(path, "content"), check_writable, lambda path: held(path).__enter__()]
)
def test_places_where_no_file_can_come(
    folder: Path, target: Callable[[Path], Any], message: str, use: Callable[[Any], object]
) -> None:
    with pytest.raises(TopThetaValueError, match=message):
        use(target(folder))


@pytest.mark.parametrize("use", [lambda path: write_atomically(path, "x"), lambda path: read_bytes(path, "a file", 9)])
def test_paths_are_paths(use: Callable[[Any], object]) -> None:
    with pytest.raises(TopThetaTypeError, match=r"path: expected a str or pathlib.Path, got bytes"):
        use(b"bytes")


def test_a_write_protected_file_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "protected"
    file.write_text("kept")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # of root, too
    uses: list[Callable[[Path], object]] = [partial(write_atomically, content="new"), check_writable]
    for use in uses:
        with pytest.raises(TopThetaValueError, match="expected a file that may be written, got a write-protected one"):
            use(file)
    assert file.read_text() == "kept"


def test_trying_leaves_nothing_behind_and_names_the_option(folder: Path) -> None:
    check_writable(folder / "results.json", "--json")
    assert list(folder.iterdir()) == []
    with pytest.raises(TopThetaValueError, match=r"^--json: expected the name of a file, got a folder at "):
        check_writable(folder, "--json")


@pytest.mark.parametrize("when", ["fsync", "replace", "chmod"])
def test_whatever_fails_the_old_content_stays(folder: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    (folder / "file").write_text("old")

    def fail(*arguments: Any, **_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, when, fail)
    with pytest.raises(TopThetaValueError, match=r"file: expected a place .*, got No space left on device; free some"):
        write_atomically(folder / "file", "new")
    monkeypatch.undo()
    assert (folder / "file").read_text() == "old"
    assert [path.name for path in folder.iterdir()] == ["file"]


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is flushed to the disk, in this order."""
    paths: list[Path] = []
    flush = os.fsync

    def note(descriptor: int) -> None:
        flush(descriptor)
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fsync", note)
    return paths


def test_a_power_loss_leaves_the_old_or_all_of_the_new(folder: Path, flushed: list[Path]) -> None:
    """Contents are flushed before they get their names, and then the names."""
    write_atomically(folder / "file", "new")
    assert [path.parent for path in flushed] == [folder, folder.parent]
    flushed.clear()
    with new_folder(folder / "new") as written:
        (written / "inner").mkdir()
        (written / "inner" / "file").write_text("new")
    inside = {written / "inner", written / "inner" / "file", written}
    assert set(flushed[:-1]) == inside
    assert flushed[-2:] == [written, folder]


def test_reading_is_bounded_and_of_files(folder: Path) -> None:
    (folder / "large").write_bytes(bytes(11))
    assert len(read_bytes(folder / "large", "a table", 11)) == 11
    with pytest.raises(TopThetaValueError, match="expected a table of at most 10 bytes"):
        read_bytes(folder / "large", "a table", 10)
    for path, message in (
        (use_pipe(folder), "expected a table, got a device or pipe; give the path of a file"),
        (folder / "none", "expected a table, got no such file; correct the path"),
    ):
        with pytest.raises(TopThetaValueError, match=f"^{path}: {message}"):
            read_bytes(path, "a table", 10)


def test_nothing_is_nothing_and_what_cannot_be_told_is_an_error(folder: Path) -> None:
    (folder / "file").touch()
    assert status(folder / "file", "a table") is not None
    assert status(folder / "none", "a table") is status(folder / "file" / "below", "a table") is None
    with pytest.raises(TopThetaValueError, match=r"^MODEL: expected a folder, got one that cannot be read \(File name"):
        status(folder / ("n" * 300), "a folder", "MODEL")


def test_one_process_at_a_time_works_for_a_file(folder: Path) -> None:
    target = folder / "state"
    with held(target):
        with pytest.raises(TopThetaValueError, match="state: expected a file that no other process works on, got one"):
            held(str(target)).__enter__()
        write_atomically(target, "by who holds it")
        with held(folder / "other"):
            pass
    with held(target):
        pass
    assert target.read_text() == "by who holds it"


def test_what_a_killed_process_held_is_free(tmp_path: Path) -> None:
    target = tmp_path / "state"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with held(target):
            os.write(writing, b"!")
            signal.pause()
    assert os.read(reading, 1) == b"!"
    with pytest.raises(TopThetaValueError, match="one that another works on"):
        held(target).__enter__()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with held(target):
        pass


def test_a_lock_file_that_is_removed_between_opening_and_locking_keeps_others_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process ends while a second is about to lock; a third must not come in beside the second."""
    target = folder / "state"
    ours, theirs = socket.socketpair()

    def lock_late(*given: Any) -> None:
        monkeypatch.undo()
        theirs.send(b"opened")
        theirs.recv(1)
        fcntl.flock(*given)

    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            ours.close()
            theirs.recv(1)
            monkeypatch.setattr(fcntl, "flock", lock_late)
            with held(target):
                theirs.send(b"locked")
                theirs.recv(1)
        os._exit(0)
    theirs.close()
    with ours:
        with held(target):
            ours.send(b"!")
            assert ours.recv(6) == b"opened"
        ours.send(b"!")
        assert ours.recv(6) == b"locked"
        with pytest.raises(TopThetaValueError, match="one that another works on"):
            held(target).__enter__()
    os.waitpid(child, 0)


def test_a_new_folder_comes_whole_and_with_the_usual_modes(folder: Path) -> None:
    (folder / "empty").mkdir()
    for name in ("new", "empty"):
        with new_folder(folder / name) as written:
            os.close(os.open(written / "file", os.O_CREAT | os.O_WRONLY, 0o600))
            assert not list((folder / name).glob("*"))
        (folder / "usual").touch()
        assert (folder / name / "file").stat().st_mode == (folder / "usual").stat().st_mode


@pytest.mark.parametrize(
    ("error", "seen"), [(KeyboardInterrupt, "^$"), (OSError(errno.ENOSPC, "Full"), "folder can be written, got Full;")]
)
def test_a_folder_that_is_not_finished_leaves_nothing(folder: Path, error: BaseException, seen: str) -> None:
    def fill() -> None:
        with new_folder(folder / "new") as written:
            (written / "file").touch()
            raise error

    with pytest.raises((KeyboardInterrupt, TopThetaValueError), match=seen):
        fill()
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full", "expected a new folder or an empty one, got one with files in it; name another"),
        ("file", "expected a new folder or an empty one, got a file; name another"),
        ("none/new", "expected a folder in an existing folder, got no such folder; create .*none$"),
        ("n" * 300, "File name too long"),
    ],
)
def test_places_where_no_folder_can_come(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "full" / "inner").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(TopThetaValueError, match=message), new_folder(tmp_path / name):
        raise AssertionError("not reached")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]
