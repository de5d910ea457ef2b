"""The C++ compiler of this machine: finding it, and running it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import TopThetaBackendError

INSTALL = "install g++ 9 or newer, for example: apt-get install g++"
VARIABLE = "CXX"
_LINKER_LINES = 3
_NAMES = ("g++", "c++", "clang++")
_ERROR_LINE = re.compile(r"\berror\b", re.IGNORECASE)
#: The system's words for a full disk or quota, and for a file beyond the largest size.
_FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_KILLED = re.compile(r"Killed signal|signal 9\b|Cannot allocate memory|out of memory", re.IGNORECASE)
#: What the compiler says of its linker, which has said before what is wrong.
_OF_THE_LINKER = re.compile(r"ld returned \d+ exit status|linker command failed")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that has said what it is.

    Attributes:
        command: the words that call it.
        version: what it prints for ``--version``.
    """

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{self.version.splitlines()[0]}, {self.command[0]}"


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
        """Its line about a full disk, or the first error in what it printed, or the linker's, or its last words."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        first = next((at for at, line in enumerate(lines) if _ERROR_LINE.search(line)), len(lines) - 1)
        if any(_FULL_DISK.search(line) for line in lines):
            said = next(line for line in lines if _FULL_DISK.search(line))
        elif lines and _OF_THE_LINKER.search(lines[first]):
            said = " / ".join(lines[max(0, first - _LINKER_LINES) : first + 1])
        else:
            said = lines[first] if lines else ""
        return f"{self.ending}: {said}" if said else self.ending

    def remedy(self, folder: Path) -> str | None:
        """Tell what to do against a full disk or too little memory; None where neither is at fault.

        Args:
            folder: where the output was to go.
        """
        if _FULL_DISK.search(self.output):
            return f"free some space in {folder} and {tempfile.gettempdir()}"
        if self.ending.endswith(" -9") or _KILLED.search(self.output):
            return "free some memory, and try again"
        return None


def find_compiler(named: str | None = None) -> Compiler:
    """Find the compiler: the named one, that of $CXX, or the first of g++, c++ and clang++ that is installed.

    Args:
        named: a path, a name, or a command such as "ccache g++".

    Raises:
        TopThetaBackendError: there is none, or it does not say what it is.
    """
    command = _command(named or os.environ.get(VARIABLE, "").strip())
    try:
        version = run_compiler([*command, "--version"])
    except CompilerFailure as failure:
        got = f"{shlex.join(command)}, which {failure.summary}"
        raise TopThetaBackendError("compiler", "one that works", got, f"{INSTALL}, or name another in CXX") from failure
    return Compiler(command, version.strip() or "a compiler without a version")


def _command(given: str) -> tuple[str, ...]:
    """Split the call into words, and give the first one its whole path."""
    named = [given]
    with suppress(ValueError):  # an unclosed quotation mark
        named = shlex.split(given)
    for words in [named] if given else [[name] for name in _NAMES]:
        path = shutil.which(words[0])
        if path is not None:
            return os.path.abspath(path), *words[1:]
    remedy = f"{INSTALL}, or unset CXX" if given else INSTALL
    raise TopThetaBackendError("compiler", "g++ or $CXX", given or f"none of {', '.join(_NAMES)}", remedy)


def run_compiler(command: Sequence[str]) -> str:
    """Run a compiler, and return what it printed, in English.

    Raises:
        CompilerFailure: it does not start, or reports an error.
    """
    try:
        done = subprocess.run(
            command, env=os.environ | {"LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise CompilerFailure(command, f"does not start ({error.strerror or error})", "") from error
    if done.returncode != 0:
        raise CompilerFailure(command, f"failed with status {done.returncode}", done.stdout)
    return done.stdout
