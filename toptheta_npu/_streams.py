"""The standard streams of a command: any character can be printed, and a full device is an error of one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TextIO

#: The exit status where output was lost.
LOST = 1


@contextmanager
def standard_streams() -> Iterator[None]:
    """Print all that the context prints, whatever its characters.

    Raises:
        SystemExit: output was lost, for example on a full disk. One line on stderr says so.
    """
    for stream in (sys.stdout, sys.stderr):
        # a character that the terminal does not know, such as theta, is no reason to fail
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    status: object = None
    try:
        yield
    except OSError:
        # what failed may have been another file; a failed write may have left nothing to flush
        if not _end_output("\n"):
            raise
        status = LOST
    except SystemExit as ending:
        if not _end_output():
            raise
        status = ending.code or LOST
    else:
        status = LOST if _end_output() else None
    if status is not None:
        raise SystemExit(status)


def _end_output(more: str = "") -> bool:
    """Flush both streams, and tell whether one lost output. What a lost one still holds is dropped.

    Args:
        more: written to the streams, stdout first, until one fails.
    """
    lost = _is_lost(sys.stdout, more)
    return _is_lost(sys.stderr, "" if lost else more) or lost


def _is_lost(stream: TextIO | None, more: str) -> bool:
    if stream is None:  # it was closed from the beginning
        return False
    try:
        if more:  # even an empty text is a write
            stream.write(more)
        stream.flush()
        return False
    except OSError as error:
        _drop(stream)
        # a pipe whose reader has left is no fault
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            remedy = "free some space, or write elsewhere"
            _say(f"error: output: expected a place that takes all of it, got {error.strerror}; {remedy}")
        return True


def _say(line: str) -> None:
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _drop(stream: TextIO) -> None:
    """Send what the stream holds to nowhere, so that Python's own flush at the end does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
