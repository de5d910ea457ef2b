"""The C++ compiler of this machine: finding it, running it, and folders for what it has not finished."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import TopThetaBackendError

INSTALL = "install g++ 9 or newer, for example: apt-get install g++"
VARIABLE = "CXX"
_NAMES = ("g++", "c++", "clang++")
_ANSWER_SECONDS = 20
_ERROR_LINE = re.compile(r"\berror\b", re.IGNORECASE)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|File too large|File size limit exceeded")
_UNFINISHED = ".building-"
#: No build lasts as long; what is older was left behind by a killed one.
_LEFT_BEHIND_SECONDS = 3600


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that has said what it is.

    Attributes:
        command: the words that call it.
        path: the file behind it, with links resolved.
        version: what it prints for ``--version``.
    """

    command: tuple[str, ...]
    path: str
    version: str

    def __str__(self) -> str:
        return f"{self.version.splitlines()[0]}, {self.path}"


class CompilerFailure(Exception):
    """A compiler that did not do what it was asked for.

    Attributes:
        command: its call.
        ending: how it ended, in words.
        output: what it printed.
    """

    def __init__(self, command: Sequence[str], ending: str, output: str) -> None:
        self.command, self.ending, self.output = list(command), ending, output
        super().__init__(f"{ending}:\n{shlex.join(command)}\n{output}")

    @property
    def summary(self) -> str:
        """The first error in what it printed, or its last words."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        said = next((line for line in lines if _ERROR_LINE.search(line)), lines[-1] if lines else "")
        return f"{self.ending}: {said}" if said else self.ending

    @property
    def no_room(self) -> str | None:
        """Its words where the disk, a quota or a limit leaves no room for what it writes."""
        found = _NO_ROOM.search(self.output)
        return found[0] if found else None


def find_compiler(named: str | None = None) -> Compiler:
    """Find the compiler: the named one, that of $CXX, or the first of g++, c++ and clang++ that is installed.

    Args:
        named: a path, a name, or a command such as "ccache g++".

    Raises:
        TopThetaBackendError: there is none, or it does not say what it is.
    """
    command = _command(named or os.environ.get(VARIABLE, "").strip())
    try:
        version = run_compiler([*command, "--version"], seconds=_ANSWER_SECONDS)
    except CompilerFailure as failure:
        got = f"{shlex.join(command)}, which {failure.summary}"
        raise TopThetaBackendError("compiler", "one that works", got, f"{INSTALL}, or name another in CXX") from failure
    return Compiler(command, os.path.realpath(command[0]), version.strip() or "a compiler without a version")


def _command(given: str) -> tuple[str, ...]:
    """Split the call into words, and give the first one its whole path."""
    names: list[Sequence[str]] = [(name,) for name in _NAMES]
    if given:
        names = [(given,)]  # also with a space in its path
        with suppress(ValueError):  # an unclosed quotation mark
            names.append(shlex.split(given))
    for words in names:
        path = shutil.which(words[0]) if words else None
        if path is not None:
            return os.path.abspath(path), *words[1:]
    remedy = f"{INSTALL}, or unset CXX" if given else INSTALL
    raise TopThetaBackendError("compiler", "g++ or $CXX", given or f"none of {', '.join(_NAMES)}", remedy)


def run_compiler(command: Sequence[str], *, seconds: float, folder: Path | None = None) -> str:
    """Run a compiler; what it started ends with it, also when it hangs or this is interrupted.

    Args:
        command: its call.
        seconds: how long it may take.
        folder: where it runs and keeps its temporary files, an absolute path.

    Returns:
        What it printed, in English.

    Raises:
        CompilerFailure: it does not start, does not end in time, or reports an error.
    """
    variables = os.environ | {"LC_ALL": "C"} | ({} if folder is None else {"TMPDIR": str(folder)})
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise CompilerFailure(command, f"does not start ({error.strerror or error})", "") from error
    with process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise CompilerFailure(command, f"did not end within {seconds:g} s", "") from error
            raise
    if process.returncode != 0:
        raise CompilerFailure(command, _ending(process.returncode), output)
    return output


def _ending(status: int) -> str:
    if status > 0:
        return f"failed with status {status}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


@contextmanager
def unfinished_folder(place: Path) -> Iterator[Path]:
    """Make a folder below ``place`` for what is to be moved there when it is complete.

    At the end, remove it with what is still in it. At the start, remove what killed processes left long ago.
    """
    place = place.absolute()  # compilers run in it
    for left in place.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > _LEFT_BEHIND_SECONDS:
                shutil.rmtree(left)
    folder = place / f"{_UNFINISHED}{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
