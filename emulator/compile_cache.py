"""What the emulator compiles, kept once for every state of the inputs, for all processes."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

_HERE = Path(__file__).resolve().parent
#: What `import emulator` needs in the search path.
IMPORT_ROOT = _HERE.parent
_USER_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ascend-emulator"
#: Beside a checkout, so that it goes with it; of the user where the emulator has been installed.
BUILD_ROOT = IMPORT_ROOT / "build" if (_HERE / "pyproject.toml").is_file() else _USER_CACHE
CACHE = BUILD_ROOT / "emulator"
_logger = logging.getLogger(__name__)


class CompileError(RuntimeError):
    """A source that the compiler refuses.

    Attributes:
        command: the compiler call.
        output: what the compiler printed.
    """

    def __init__(self, command: Sequence[str], output: str) -> None:
        self.command = list(command)
        self.output = output
        super().__init__(f"the compiler refuses this:\n{' '.join(command)}\n{output}")


def default_compiler() -> str:
    """Choose the C++ compiler: $CXX, or g++."""
    return os.environ.get("CXX") or "g++"


@lru_cache
def compiler_version(compiler: str) -> str:
    """Ask the compiler what it says of itself.

    Raises:
        FileNotFoundError: there is no such compiler.
    """
    if shutil.which(compiler) is None:
        remedy = "install g++, or name a compiler in CXX"
        raise FileNotFoundError(f"compiler: expected an installed C++ compiler, got {compiler!r}; {remedy}")
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


def run_compiler(command: Sequence[str]) -> None:
    """Run a compiler, an archiver or a build script.

    Raises:
        CompileError: it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(command, done.stdout + done.stderr)


def digest(inputs: Iterable[str | Path]) -> str:
    """Make a short name for exactly these inputs: texts, and files by their paths and contents."""
    state = hashlib.sha256()
    for item in inputs:
        state.update(b"\0" + str(item).encode())
        if isinstance(item, Path):
            state.update(b"\0" + item.read_bytes())
    return state.hexdigest()[:24]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Keep other processes out of the same context."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a new folder in the cache; remove at the end what is still there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="new-", dir=CACHE))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def cached_folder(name: str, inputs: Iterable[str | Path], build: Callable[[Path], None]) -> Path:
    """Find the folder for exactly these inputs and this compiler, see `digest`; `build` fills it if it is new.

    Several processes may ask at once; one of them builds.

    Raises:
        CompileError: the compiler refuses a source.
        FileNotFoundError: there is no such compiler.
    """
    folder = CACHE / f"{name}-{digest([compiler_version(default_compiler()), *inputs])}"
    with locked(folder.name):
        if not folder.is_dir():
            _logger.info("building %s", name)
            with scratch_folder() as scratch:
                build(scratch)
                scratch.chmod(0o755)
                scratch.rename(folder)
    return folder
