"""Whole files and folders: written at once or not at all, whoever else writes, and whatever goes wrong."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toptheta_npu._files import check_writable, held, new_folder, read_bytes, status, write_atomically
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder which holds, after the test, nothing but files that the test itself names."""
    yield tmp_path
    assert not [path.name for path in tmp_path.rglob(".toptheta*")], "something was left behind"


def test_bytes_and_text_arrive_whole(folder: Path) -> None:
    write_atomically(folder / "bytes", b"\x00\xff")
    write_atomically(str(folder / "text"), "κ~/k")
    assert (folder / "bytes").read_bytes() == b"\x00\xff"
    assert (folder / "text").read_text(encoding="utf-8") == "κ~/k"


def test_the_mode_of_an_existing_file_stays_and_a_new_one_has_the_usual_one(folder: Path) -> None:
    for mode in (0o600, 0o664, 0o755):
        target = folder / oct(mode)
        target.write_text("old")
        target.chmod(mode)
        write_atomically(target, "new")
        assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", mode)
    (folder / "usual").touch()
    write_atomically(folder / "new", "")
    assert (folder / "new").stat().st_mode == (folder / "usual").stat().st_mode


def test_symbolic_links_stay(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "file").write_text("old")
    (folder / "link").symlink_to("data/file")
    (folder / "chain").symlink_to("link")
    (folder / "dangling").symlink_to("data/later")
    write_atomically(folder / "chain", "new")
    write_atomically(folder / "dangling", "first")
    assert (folder / "data" / "file").read_text() == "new"
    assert (folder / "data" / "later").read_text() == "first"
    assert all((folder / name).is_symlink() for name in ("link", "chain", "dangling"))
    assert sorted(path.name for path in (folder / "data").iterdir()) == ["file", "later"]


@pytest.fixture(params=["/dev/full", "pipe", "link"])
def no_file(request: pytest.FixtureRequest, folder: Path) -> Path:
    """The name of something that is neither a file nor a folder."""
    path = folder / str(request.param)
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "link":
        path.symlink_to("/dev/full")
    return path


@pytest.mark.parametrize(
    "use", [lambda path: write_atomically(path, "content"), check_writable, lambda path: held(path).__enter__()]
)
def test_devices_and_pipes_are_neither_written_nor_held(no_file: Path, use: Callable[[Path], object]) -> None:
    before = no_file.lstat()
    expected = "expected a regular file or the name of a new one, got a device or pipe; name a file"
    with pytest.raises(TopThetaValueError, match=f"^{no_file}: {expected}$"):
        use(no_file)
    assert (no_file.lstat().st_ino, no_file.lstat().st_mode) == (before.st_ino, before.st_mode)


def test_devices_and_pipes_are_not_read(no_file: Path) -> None:
    with pytest.raises(TopThetaValueError, match=f"^{no_file}: expected a table, got a device or pipe; give the path"):
        read_bytes(no_file, "a table", 10)


def loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda folder: folder, "the name of a file, got a folder; add the name of a file"),
        (lambda folder: "", "the name of a file, got a folder"),
        (lambda folder: folder / "none" / "file", "a file in an existing folder, got no such folder; create .*none$"),
        (lambda folder: folder / ("n" * 300), "got File name too long; choose a shorter name"),
        (loop, "got Too many levels of symbolic links"),
        (lambda folder: "nu\0ll", "path: expected a path without null characters"),
    ],
)
def test_unusable_targets(folder: Path, target: Callable[[Path], Any], message: str) -> None:
    path = target(folder)
    with pytest.raises(TopThetaValueError, match=message):
        write_atomically(path, "content")


@pytest.mark.parametrize("path", [None, b"bytes"])
def test_paths_are_paths(path: Any) -> None:
    with pytest.raises(TopThetaTypeError, match=r"path: expected a str or pathlib.Path, got"):
        write_atomically(path, "content")
    with pytest.raises(TopThetaTypeError, match=r"path: expected a str or pathlib.Path, got"):
        read_bytes(path, "a file", 10)


@pytest.mark.parametrize("when", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_whatever_fails_the_old_content_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch, when: str, code: int
) -> None:
    (folder / "file").write_text("old")

    def fail(*arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, when, fail)
    with pytest.raises(TopThetaValueError, match=f"file: expected a place .*, got {os.strerror(code)}; ") as caught:
        write_atomically(folder / "file", "new")
    assert isinstance(caught.value.__cause__, OSError)
    monkeypatch.undo()
    assert (folder / "file").read_text() == "old"
    assert [path.name for path in folder.iterdir()] == ["file"]


def error_as_nobody(folder: Path, action: Callable[[], object]) -> str:
    """What ``action`` raises in ``folder`` in a process without root's rights."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.chdir(folder)
            action()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text


@pytest.fixture
def public(folder: Path) -> Path:
    """The folder, for every user to look into."""
    for each in (folder, *folder.parents):
        if each.owner() == folder.owner() and not each.stat().st_mode & 0o001:
            each.chmod(0o755)
    return folder


def test_a_folder_or_file_that_may_not_be_written(public: Path) -> None:
    (public / "sub").mkdir()
    (public / "sub" / "file").write_text("old")
    for mode, path in ((0o555, "new"), (0o555, "file")):
        (public / "sub").chmod(mode)
        error = error_as_nobody(public / "sub", lambda path=path: write_atomically(path, "new"))
        assert f"TopThetaValueError: {path}: expected a place where a file can be written, got " in error
        assert "choose a place where you may write, or change its permissions" in error
    (public / "sub").chmod(0o777)
    (public / "sub" / "file").chmod(0o444)
    error = error_as_nobody(public / "sub", lambda: write_atomically("file", "new"))
    assert "TopThetaValueError: file: expected a place where a file can be written, got " in error
    assert (public / "sub" / "file").read_text() == "old"


def test_a_file_that_may_not_be_read_is_not_called_missing(public: Path) -> None:
    (public / "secret").write_text("content")
    (public / "secret").chmod(0)
    error = error_as_nobody(public, lambda: read_bytes("secret", "a table", 100))
    expected = "secret: expected a table, got one that cannot be read (Permission denied); correct the path or its"
    assert f"TopThetaValueError: {expected}" in error


def test_nothing_is_nothing_and_what_cannot_be_told_is_an_error(public: Path) -> None:
    (public / "file").touch()
    found = status(public / "file", "a table")
    assert found is not None
    assert stat.S_ISREG(found.st_mode)
    assert status(public / "none", "a table") is status(public / "file" / "below", "a table") is None
    with pytest.raises(TopThetaValueError, match=r"^MODEL: expected a folder, got one that cannot be read \(File name"):
        status(public / ("n" * 300), "a folder", "MODEL")
    (public / "private").mkdir(mode=0o700)
    error = error_as_nobody(public, lambda: status("private/table", "a table"))
    expected = "private/table: expected a table, got one that cannot be read (Permission denied); correct the path or"
    assert f"TopThetaValueError: {expected}" in error


def test_reading_is_bounded(folder: Path) -> None:
    (folder / "large").write_bytes(bytes(11))
    assert len(read_bytes(folder / "large", "a table", 11)) == 11
    with pytest.raises(TopThetaValueError, match="expected a table of at most 10 bytes, got 11"):
        read_bytes(folder / "large", "a table", 10)


def test_one_process_at_a_time_works_for_a_file(folder: Path) -> None:
    target = folder / "state"
    with held(target):
        with pytest.raises(TopThetaValueError, match="state: expected a file that no other process works on, got one"):
            held(target).__enter__()
        write_atomically(target, "by who holds it")
        with pytest.raises(TopThetaValueError, match="that another works on; wait for its end, or name another file"):
            held(str(target)).__enter__()
        with held(folder / "other"):
            pass
    with held(target):
        pass
    assert target.read_text() == "by who holds it"


def test_what_a_killed_process_held_is_free(folder: Path) -> None:
    target = folder / "state"
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


def test_a_file_without_a_folder_cannot_be_held(folder: Path) -> None:
    with pytest.raises(TopThetaValueError, match="expected a file in an existing folder"):
        held(folder / "none" / "state").__enter__()


def test_a_new_folder_comes_whole_and_with_the_usual_modes(folder: Path) -> None:
    for name in ("new", "empty"):
        (folder / "empty").mkdir(exist_ok=True)
        with new_folder(folder / name) as written:
            secret = os.open(written / "file", os.O_CREAT | os.O_WRONLY, 0o600)
            os.close(secret)
            assert not list((folder / name).glob("*"))
        (folder / "usual").touch()
        assert (folder / name / "file").stat().st_mode == (folder / "usual").stat().st_mode


def test_a_link_to_an_empty_folder_stays(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "link").symlink_to("data")
    with new_folder(folder / "link") as written:
        (written / "file").touch()
    assert (folder / "link").is_symlink()
    assert (folder / "data" / "file").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, TopThetaValueError("k", "1", "2")])
def test_a_folder_that_is_not_finished_leaves_nothing(folder: Path, error: BaseException) -> None:
    def fill() -> None:
        with new_folder(folder / "new") as written:
            (written / "file").touch()
            raise error

    with pytest.raises((KeyboardInterrupt, TopThetaValueError)):
        fill()
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full", "expected a new folder or an empty one, got one with files in it; name another"),
        ("file", "expected the name of a folder, got a file; name another"),
        ("none/new", "expected a folder in an existing folder, got no such folder; create .*none$"),
        ("file/new", "expected a folder in an existing folder, got no such folder; create .*file$"),
        ("n" * 300, "expected a place where a folder can be written, got File name too long; choose a shorter name"),
    ],
)
def test_places_where_no_folder_can_come(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "full" / "inner").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(TopThetaValueError, match=f"{name}: {message}"), new_folder(tmp_path / name):
        raise AssertionError("not reached")
    with pytest.raises(TopThetaValueError, match=f"--output: .*{name}"), new_folder(tmp_path / name, "--output"):
        raise AssertionError("not reached")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]


def test_what_fails_while_a_folder_is_filled_is_a_typed_error(folder: Path) -> None:
    expected = r"new: expected a place where a folder can be written, got No space left on device; free some space"
    with pytest.raises(TopThetaValueError, match=expected), new_folder(folder / "new"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(TopThetaValueError, match="got Directory not empty"), new_folder(folder / "new"):
        (folder / "new" / "of another").mkdir(parents=True)
