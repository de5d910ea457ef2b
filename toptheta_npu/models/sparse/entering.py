"""Context managers that warn if nobody entered them, since a call alone does nothing."""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class NotEnteredWarning(UserWarning):
    """A context was made and dropped without a ``with``: the model stayed dense."""


class Entry(Generic[T]):
    """The return value of a function under `told_unless_entered`: for one ``with``, an ExitStack, or a decorator."""

    def __init__(self, make: Callable[[], Any], name: str, filename: str, line: int) -> None:
        self._context = make()
        # runs at the end of the program too, when the variables of a script are dropped
        self._told = weakref.finalize(self, _tell, name, filename, line)

    def __enter__(self) -> T:
        self._told.detach()
        entered: T = self._context.__enter__()
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        swallowed: bool | None = self._context.__exit__(kind, error, traceback)
        return swallowed

    def __call__(self, function: F) -> F:
        """Decorate ``function``: each call of it runs in a context of its own."""
        self._told.detach()
        decorated: F = self._context(function)
        return decorated


def _tell(name: str, filename: str, line: int) -> None:
    message = (
        f"{name}(...) did nothing: it was called, but not entered, and the model stayed dense. "
        f"Write `with {name}(...):` around the calls of the model"
    )
    warnings.warn_explicit(message, NotEnteredWarning, filename, line)


def told_unless_entered(function: Callable[P, Iterator[T]]) -> Callable[P, Entry[T]]:
    """Turn a generator function into a context manager, as contextlib does, that warns if it is dropped unentered.

    A warning in the generator must count two frames between it and the ``with``.

    Example:
        >>> @told_unless_entered
        ... def five():
        ...     yield 5
        >>> with five() as number:
        ...     print(number)
        5
    """
    make = contextmanager(function)

    @functools.wraps(function)
    def enter(*args: P.args, **kwargs: P.kwargs) -> Entry[T]:
        caller = sys._getframe(1)
        return Entry(lambda: make(*args, **kwargs), function.__name__, caller.f_code.co_filename, caller.f_lineno)

    return enter
