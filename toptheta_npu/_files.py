"""Whole files and folders, written at once: no reader ever sees half of them, and every failure is a typed error."""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from .errors import TopThetaTypeError, TopThetaValueError

try:
    import fcntl
except ImportError:  # not on Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]


def file_error(path: object, expected: str, got: str, remedy: str | None = None) -> TopThetaValueError:
    """Make the error for something wrong with the file at ``path``."""
    return TopThetaValueError(str(path), expected, got, remedy)


def checked_path(path: Any) -> Path:
    """Return ``path`` as a Path.

    Raises:
        TopThetaTypeError: it is neither a str nor a path object.
        TopThetaValueError: it holds a null character.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(text := os.fspath(path), str):
        raise TopThetaTypeError("path", "a str or pathlib.Path", type(path).__name__)
    if "\0" in text:
        raise TopThetaValueError("path", "a path without null characters", repr(text))
    return Path(text)


def status(path: str | os.PathLike[str], what: str, argument: str | None = None) -> os.stat_result | None:
    """Tell what is at ``path``, links followed; None where nothing is.

    Args:
        path: of anything.
        what: what it should be, with its article, for the error messages.
        argument: what the error names; None: the path.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: it cannot be told, such as inside a folder of somebody else, or of a name that is too long.
    """
    try:
        return checked_path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(argument or path, what, error, "" if argument is None else f" at {path}") from error


def read_bytes(path: str | os.PathLike[str], what: str, most: int) -> bytes:
    """Read a regular file, opened once, so that it is one file's content even while others replace it.

    Args:
        path: the file.
        what: what it should be, with its article, for the error messages.
        most: the largest size in bytes.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: there is no such file, it is not a regular one, too large or unreadable.
    """
    found = status(path, what)
    if found is None:
        raise file_error(path, what, "no such file", "correct the path")
    # opening a pipe would wait for its other end
    if not stat.S_ISREG(found.st_mode):
        raise file_error(path, what, _kind(found), "give the path of a file")
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise file_error(path, f"{what} of at most {most} bytes", str(size), "correct the path")
            return file.read(size)
    except OSError as error:
        raise _unreadable(path, what, error) from error


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a whole file: afterwards ``path`` holds all of ``content`` or, after an error, what it held before.

    The content goes to a file beside the target, which then takes its place. A symbolic link stays and what it
    points to is replaced; the mode of an existing file stays.

    Args:
        path: the file: a regular one, or the name of a new one.
        content: bytes, or text for UTF-8.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: the file cannot be written; the message says why.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "results.json"
        >>> write_atomically(file, "{}")
        >>> file.read_text()
        '{}'
    """
    target = _replaceable(path, None)
    with _typed_errors(None, target, "file"):
        temporary = _beside(target)
        try:
            with temporary.open("xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
            _flush_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


def move_into_place(finished: Path, target: Path) -> None:
    """Put a finished file in the place of ``target``: even after a power loss it is the old one or all of the new.

    Raises:
        OSError: it cannot be flushed or moved; ``target`` is as before.
    """
    _flush(finished)
    finished.replace(target)
    _flush_folder(target.parent)


def check_writable(path: str | os.PathLike[str], argument: str | None = None) -> None:
    """Try whether `write_atomically` can write a file, without leaving anything behind: before long work for it.

    Args:
        path: the file.
        argument: what the error names; None: the path.

    Raises:
        TopThetaTypeError, TopThetaValueError: as `write_atomically`.
    """
    target = _replaceable(path, argument)
    with _typed_errors(argument, target, "file"):
        temporary = _beside(target)
        temporary.touch(exist_ok=False)
        temporary.unlink()


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Fill a new folder: afterwards ``path`` holds all that was written or, after an error, is as it was before.

    The files go to a folder beside the target, which then takes its place.

    Args:
        path: what is not there yet, or an empty folder; what it stands in is there.

    Returns:
        The folder to write into.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: something is there, or the folder cannot be written; the message says why.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "model"
        >>> with new_folder(target) as folder:
        ...     _ = (folder / "config.json").write_text("{}")
        >>> [file.name for file in target.iterdir()]
        ['config.json']
    """
    target = Path(os.path.realpath(checked_path(path)))
    with _typed_errors(None, target, "folder"):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            got = "one with files in it" if target.is_dir() else "a file"
            raise file_error(target, "a new folder or an empty one", got, "name another, or remove what is there")
        temporary = _beside(target)
        temporary.mkdir()
        try:
            yield temporary
            usual = stat.S_IMODE(temporary.stat().st_mode) & 0o666
            for file in temporary.rglob("*"):
                if file.is_file():
                    file.chmod(usual)  # some writers let nobody else read theirs
                    _flush(file)
                elif file.is_dir():
                    _flush_folder(file)
            _flush_folder(temporary)
            temporary.replace(target)
            _flush_folder(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes from the long work for one file: whoever comes second gets an error.

    It is let go at the end, also of a killed process. File systems without locks keep nobody from anything.

    Args:
        path: the file, which need not be there.

    Raises:
        TopThetaTypeError, TopThetaValueError: as `write_atomically`, or another process has it.
    """
    if fcntl is None:
        yield
        return
    target = _replaceable(path, None)
    lock = target.with_name(f".{target.name}.lock")
    with _typed_errors(None, target, "file"):
        file = _locked(lock)
    if file is None:
        expected, got = "a file that no other process works on", "one that another works on"
        raise file_error(path, expected, got, "wait for its end, or name another file")
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _locked(lock: Path) -> BinaryIO | None:
    """Open and lock the file at ``lock``, which need not be there; None while another process has it."""
    while True:
        file = lock.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:  # such as a network file system without locks
            return file
        # who had it removes it: a lock on a removed file keeps nobody out
        there = status(lock, "a file")
        if there is not None and os.path.samestat(os.fstat(file.fileno()), there):
            return file
        file.close()


@contextmanager
def _typed_errors(argument: str | None, target: Path, what: str) -> Iterator[None]:
    where = "" if argument is None else f" at {target}"
    name = argument or str(target)
    try:
        yield
    except OSError as error:
        if not target.parent.is_dir():
            expected, got = f"a {what} in an existing folder", f"no such folder{where}"
            raise TopThetaValueError(name, expected, got, f"create {target.parent}") from error
        expected, got = f"a place where a {what} can be written", f"{error.strerror or error}{where}"
        raise TopThetaValueError(name, expected, got, "free some space, or choose another place") from error


def _unreadable(name: object, what: str, error: OSError, where: str = "") -> TopThetaValueError:
    got = f"one that cannot be read ({error.strerror or error}){where}"
    return file_error(name, what, got, "correct the path or its permissions")


def _kind(found: os.stat_result) -> str:
    return "a folder" if stat.S_ISDIR(found.st_mode) else "a device or pipe"


def _replaceable(path: str | os.PathLike[str], argument: str | None) -> Path:
    """Resolve ``path``, so that a link stays; raise unless a regular file or nothing is there.

    A device would be replaced, or take bytes without end.
    """
    found = status(path, "the name of a file", argument)
    if found is not None and not stat.S_ISREG(found.st_mode):
        got = _kind(found) + ("" if argument is None else f" at {path}")
        remedy = "name a file in it" if stat.S_ISDIR(found.st_mode) else "name a file"
        raise TopThetaValueError(argument or str(path), "the name of a file", got, remedy)
    if found is not None and not os.access(path, os.W_OK):  # a new file in its place needs no permission of its own
        got = "a write-protected one" + ("" if argument is None else f" at {path}")
        remedy = "allow it to be written, or name another file"
        raise TopThetaValueError(argument or str(path), "a file that may be written", got, remedy)
    return Path(os.path.realpath(path))


def _flush(file: Path) -> None:
    with file.open("r+b") as written:
        os.fsync(written.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush the names in a folder, as far as the system can."""
    with suppress(OSError):  # such as on Windows, and in a folder that may be written and not be read
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _beside(target: Path) -> Path:
    """Name a file or folder that stands beside ``target`` for a while."""
    return target.with_name(f".toptheta-{uuid.uuid4().hex}")
