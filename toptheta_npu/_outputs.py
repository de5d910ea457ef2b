"""Files that a command writes: tried before the work that fills them, and written whole after it."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from .errors import TopThetaValueError
from .thresholds.file import write_atomically

_ANOTHER = "name another place"


def check_output_file(option: str, path: Path) -> None:
    """Try whether a file can be written, without leaving anything behind.

    Raises:
        TopThetaValueError: ``path`` is a folder, its folder is not there, or nothing can be written into it.

    Example:
        >>> check_output_file("--json", Path(tempfile.gettempdir()) / "results.json")
    """
    target = _target(path)
    if target.is_dir():
        raise TopThetaValueError(option, "a file", f"the folder {path}", f"such as {path / 'results.json'}")
    if not target.parent.is_dir():
        raise TopThetaValueError(option, "a file in a folder that is there", str(path), f"mkdir -p {path.parent}")
    try:
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(0, "it is write-protected")
        if not _is_stream(target):
            _try_file_in(target.parent, target.name)
    except OSError as cause:
        raise TopThetaValueError(option, "a file that can be written", _reason(path, cause), _ANOTHER) from cause


def check_output_folder(option: str, folder: Path, *names: str) -> None:
    """Make a folder where there is none, and try whether the files ``names`` can be written into it.

    Raises:
        TopThetaValueError: the folder cannot be made, or a file in it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise TopThetaValueError(option, "a folder that can be made", _reason(folder, cause), _ANOTHER) from cause
    for name in names:
        check_output_file(option, folder / name)


def write_output(option: str, path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; a device such as /dev/stdout is written to.

    Raises:
        TopThetaValueError: it can no longer be written, for example since the disk is full.
    """
    data = content.encode() if isinstance(content, str) else content
    target = _target(path)
    try:
        if _is_stream(target):
            with target.open("ab") as stream:
                stream.write(data)
        else:
            write_atomically(target, data)
    except OSError as cause:
        raise TopThetaValueError(option, "a file that can be written", _reason(path, cause), _ANOTHER) from cause


def save_figure(option: str, path: Path, figure: Any) -> None:
    """Write a matplotlib figure as PNG, as `write_output` does."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_output(option, path, picture.getvalue())


def _target(path: Path) -> Path:
    """Where a link leads, so that the link stays; streams keep their names."""
    return path if _is_stream(path) else Path(os.path.realpath(path))


def _is_stream(path: Path) -> bool:
    """A device, a pipe, or a name such as /dev/stdout: there is nothing to put in its place."""
    if str(path).startswith("/dev/") and path.exists():
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _try_file_in(folder: Path, name: str) -> None:
    # as long a name as the file beside the target will have while it is written
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", suffix="." * 24):
        pass


def _reason(path: Path, cause: OSError) -> str:
    return f"{path} ({cause.strerror or cause})"
