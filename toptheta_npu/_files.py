"""Whole files, read once and written at once: no reader ever sees half a file, and every failure is a typed error."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .errors import TopThetaTypeError, TopThetaValueError

try:
    import fcntl
except ImportError:  # not on Windows: nothing is locked there, and so nothing that was left behind is removed
    fcntl = None  # type: ignore[assignment]

_REMEDIES = {
    errno.ENOSPC: "free some space, or choose another disk",
    errno.EACCES: "choose a place where you may write, or change its permissions",
    errno.EPERM: "choose a place where you may write, or change its permissions",
    errno.EROFS: "choose a disk that is not mounted read-only",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "choose a path that is not a loop of symbolic links",
}


def file_error(path: object, expected: str, got: str, remedy: str | None = None) -> TopThetaValueError:
    """The error for something wrong with the file at ``path``."""
    return TopThetaValueError(str(path), expected, got, remedy)


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes a whole file: afterwards ``path`` holds all of ``content`` or, after an error, what it held before.

    The content goes to a file beside the target, which then takes its place. A symbolic link stays and what it
    points to is replaced; the mode of an existing file stays. Devices and pipes are written directly. What a
    killed process left of an earlier write of the same file is removed.

    Args:
        path: the file.
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
    target = checked_path(path)
    data = content.encode() if isinstance(content, str) else content
    with _typed_errors(None, target):
        if _is_stream(target):
            with target.open("ab") as stream:
                stream.write(data)
        else:
            _replace(_replaceable(target), data)


def check_writable(path: str | os.PathLike[str], argument: str | None = None) -> None:
    """Tries whether `write_atomically` can write a file, without leaving anything behind: before long work for it.

    Args:
        path: the file.
        argument: what the error names; None: the path.

    Raises:
        TopThetaTypeError, TopThetaValueError: as `write_atomically`.

    Example:
        >>> import tempfile
        >>> check_writable(Path(tempfile.gettempdir()) / "results.json")
    """
    target = checked_path(path)
    with _typed_errors(argument, target):
        if not _is_stream(target):
            file, temporary = _open_beside(_replaceable(target))
            file.close()
            temporary.unlink()


@contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps other processes from the long work for one file: whoever comes second gets an error.

    It is let go at the end, also of a killed process. On file systems without locks nobody is kept from anything.

    Args:
        path: the file, which need not be there.

    Raises:
        TopThetaTypeError, TopThetaValueError: as `write_atomically`, or another process has it.

    Example:
        >>> with held("results.json"):
        ...     pass
    """
    target = checked_path(path)
    if fcntl is None or _is_stream(target):
        yield
        return
    target = Path(os.path.realpath(target))
    with _typed_errors(None, target):
        lock = target.with_name(_prefix(target) + "held")
        file = _locked(lock, str(path))
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        file.close()


def _locked(lock: Path, name: str) -> IO[bytes]:
    while True:
        file = lock.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            expected, got = "a file that no other process works on", "one that another works on"
            raise TopThetaValueError(name, expected, got, "wait for its end, or name another file") from error
        except OSError:  # such as a network file system without locks
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                return file
        # its holder removed it between the two lines
        file.close()


@contextmanager
def _typed_errors(argument: str | None, target: Path) -> Iterator[None]:
    where = "" if argument is None else f" at {target}"
    name, folder = argument or str(target), os.path.dirname(os.path.realpath(target))
    try:
        yield
    except IsADirectoryError as error:
        raise TopThetaValueError(name, "the name of a file", f"a folder{where}", "add the name of a file") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(folder):
            expected, got = "a file in an existing folder", f"no such folder{where}"
            raise TopThetaValueError(name, expected, got, f"create {folder}") from error
        expected, got = "a place where a file can be written", f"{error.strerror or error}{where}"
        raise TopThetaValueError(
            name, expected, got, _REMEDIES.get(error.errno or 0, "choose another place")
        ) from error


def read_bytes(path: str | os.PathLike[str], what: str, most: int) -> bytes:
    """The content of a regular file, opened once, so that it is one file's even while others replace it.

    Args:
        path: the file.
        what: what it should be, with its article, for the error messages.
        most: the largest size in bytes.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: there is no such file, it is not a regular one, too large or unreadable.
    """
    source = checked_path(path)
    try:
        # before it is opened: that would wait for the other end of a pipe
        mode = source.stat().st_mode
        if not stat.S_ISREG(mode):
            got = "a folder" if stat.S_ISDIR(mode) else "a device or pipe"
            raise file_error(path, what, got, "give the path of a file")
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise file_error(path, f"{what} of at most {most} bytes", str(size), "correct the path")
            return file.read(size)
    except FileNotFoundError as error:
        raise file_error(path, what, "no such file", "correct the path") from error
    except OSError as error:
        got = f"a file that cannot be read ({error.strerror or error})"
        raise file_error(path, what, got, "correct the path or its permissions") from error


def checked_path(path: Any) -> Path:
    """``path`` as a Path.

    Raises:
        TopThetaTypeError: it is neither a str nor a path object.
        TopThetaValueError: it holds a null character.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(text := os.fspath(path), str):
        raise TopThetaTypeError("path", "a str or pathlib.Path", type(path).__name__)
    if "\0" in text:
        raise TopThetaValueError("path", "a path without null characters", repr(text))
    return Path(text)


def _is_stream(path: Path) -> bool:
    """A device, a pipe, or a name such as /dev/stdout: there is nothing to put in its place."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISDIR(mode) and (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or path.is_relative_to("/dev"))


def _replaceable(path: Path) -> Path:
    """Where ``path`` leads, so that a link stays, if there is a regular file there or none."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder")
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "something else than a file is there")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is write-protected")
    return target


def _replace(target: Path, data: bytes) -> None:
    before = target.stat() if target.exists() else None
    _remove_left_behind(target)
    file, temporary = _open_beside(target)
    try:
        with file:
            file.write(data)
            file.flush()
            if before is not None:
                _take_over(file.fileno(), before)
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()
            # still locked, lest another process takes it for one that was left behind
            temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _take_over(descriptor: int, before: os.stat_result) -> None:
    """Owner, as far as allowed, and mode of the file that is to be replaced."""
    with suppress(OSError):
        os.chown(descriptor, before.st_uid, before.st_gid)
    os.chmod(descriptor, stat.S_IMODE(before.st_mode))


def _prefix(target: Path) -> str:
    """How the names of temporary files for ``target`` begin; short whatever its own name is."""
    return f".toptheta-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}-"


def _open_beside(target: Path) -> tuple[IO[bytes], Path]:
    """A new file in the folder of ``target``, open and locked."""
    while True:
        temporary = target.with_name(_prefix(target) + uuid.uuid4().hex)
        file = temporary.open("xb")
        if fcntl is None:
            return file, temporary
        # some network file systems have no locks; nothing is removed there either
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if temporary.exists():
            return file, temporary
        # between the two lines another process took it for one that was left behind
        file.close()


def _remove_left_behind(target: Path) -> None:
    """Removes temporary files of ``target`` whose writer is gone: the lock of a process ends with it."""
    if fcntl is None:
        return
    for left in target.parent.glob(_prefix(target) + "*"):
        with suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
