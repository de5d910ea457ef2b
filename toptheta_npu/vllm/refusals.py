"""Why an engine does not start, told once more at the end of the log.

An engine and its ranks run in processes below the one that the user started. vLLM logs an error there with its
traceback, and then another one from the first process, which ends in "See root cause above". So whoever refuses leaves
the reason in a file, and the first process, which names that file to all others, tells it when it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from ..errors import TopThetaError

#: Names the file to the processes below; it is there once something was refused.
_VARIABLE = "_TOPTHETA_REFUSAL"

P = ParamSpec("P")
R = TypeVar("R")


def tell_at_the_end() -> None:
    """Have this process tell at its end what was refused, unless it is below one that will."""
    if _VARIABLE in os.environ:
        return
    path = Path(tempfile.gettempdir()) / f"toptheta-{secrets.token_hex(16)}"
    os.environ[_VARIABLE] = str(path)
    atexit.register(_tell, path, os.getpid())


def tells_why(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that may refuse: its error goes on as it is, and the first process tells it at its end."""

    @wraps(function)
    def refusing(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TopThetaError as refusal:
            _leave(str(refusal))
            raise

    return refusing


def _leave(reason: str) -> None:
    """Write the file, unless another rank was faster or nobody waits for it."""
    path = os.environ.get(_VARIABLE)
    if path is None:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(reason)


def _tell(path: Path, process: int) -> None:
    if process != os.getpid():  # a fork of the first process
        return
    with contextlib.suppress(OSError):
        reason = path.read_text("utf-8")
        path.unlink()
        print(f"Top-Theta: the engine did not start: {reason}", file=sys.stderr, flush=True)
