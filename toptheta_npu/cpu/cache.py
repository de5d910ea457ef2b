"""Where compiled libraries are kept: whole ones, which only this user or root can have written.

An entry is a folder with one library and its sha256. It is made under another name and appears in one step, so that
nobody ever loads half a library, whoever builds, reads or is killed meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import TopThetaBackendError

VARIABLE = "TOPTHETA_CACHE"
LIBRARY = "incremental_attention.so"
SIDECAR = f"{LIBRARY}.sha256"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ANOTHER_FOLDER = f"name another folder in {VARIABLE}"
#: Longer than a build.
_LOCK_SECONDS = 180


def cache_folder() -> Path:
    """Choose the cache: $TOPTHETA_CACHE, or toptheta_npu below $XDG_CACHE_HOME or ~/.cache. It need not exist.

    Raises:
        TopThetaBackendError: none is named and this user has no home.
    """
    if given := os.environ.get(VARIABLE):
        return Path(os.path.abspath(os.path.expanduser(given)))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        raise TopThetaBackendError("cache", "a home folder to keep compiled code in", "none", f"name one in {VARIABLE}")
    return Path(base) / "toptheta_npu"


def checked_library(entry: Path) -> Path | None:
    """Find the library of an entry, if it is whole. Return None if there is none or it is spoilt.

    Raises:
        TopThetaBackendError: others than this user and root could have written it.
    """
    library, sidecar = entry / LIBRARY, entry / SIDECAR
    try:
        for path in (entry.parent, entry, library, sidecar):
            check_owner(path)
        noted = sidecar.read_bytes().split()[:1]
        return library if noted == [sha256(library).encode()] else None
    except OSError:
        return None


def check_owner(path: Path) -> None:
    """Refuse what others could have put there, since it is loaded into the process."""
    status, user = path.stat(), os.geteuid()
    remove = f"remove it: rm -r {shlex.quote(str(path))}"
    if status.st_uid not in (user, 0):
        owners = "root" if user == 0 else f"the user {user} or of root"
        got = f"{path}, which belongs to the user {status.st_uid}"
        raise TopThetaBackendError("cache", f"files of {owners}", got, f"{remove}, or {_ANOTHER_FOLDER}")
    if status.st_mode & _OTHERS_MAY_WRITE:
        keep = f"if you trust what is in it: chmod -R go-w {shlex.quote(str(path))}"
        got = f"{path}, which other users may write"
        raise TopThetaBackendError(
            "cache", "files that only you may write", got, f"{remove}, or, {keep}, or {_ANOTHER_FOLDER}"
        )


def finish(library: Path) -> Path:
    """Complete a new entry, which so far is a folder with a library. Return the folder."""
    library.chmod(stat.S_IMODE(library.stat().st_mode) & ~_OTHERS_MAY_WRITE)
    sidecar = library.with_name(SIDECAR)
    sidecar.write_text(f"{sha256(library)}  {LIBRARY}\n")  # as sha256sum -c reads it
    sidecar.chmod(0o644)
    return library.parent


def put_in_place(finished: Path, entry: Path) -> None:
    """Give a finished entry its name. Move a spoilt one in its place beside ``finished``."""
    try:
        os.rename(finished, entry)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if checked_library(entry) is None:  # otherwise another process was faster, where there are no locks
            os.rename(entry, finished.with_name("spoilt"))
            os.rename(finished, entry)


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file's content, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out, so that one builds and the others find it.

    Where there are no locks, or one is held too long, several build the same. One result is kept.
    """
    import fcntl  # not on Windows, where nothing is built

    try:
        file = (folder / ".lock").open("a")
    except OSError:
        yield
        return
    with file:
        end = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                break
        yield


@contextmanager
def typed_errors(folder: Path) -> Iterator[None]:
    """Turn what the disk refuses into the error of this package."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_ROOM:
            raise no_room(reason, folder) from error
        got = f"{reason} at {error.filename or folder}"
        raise TopThetaBackendError("cache", "a folder that can be written", got, _ANOTHER_FOLDER) from error


def no_room(reason: str, folder: Path) -> TopThetaBackendError:
    """Make the error for a full disk, a quota or a limit."""
    remedy = f"free some space, or {_ANOTHER_FOLDER}"
    return TopThetaBackendError("cache", "room for a megabyte", f"{reason} at {folder}", remedy)
