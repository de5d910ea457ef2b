"""The errors that this package raises. Each names the argument, what was expected, what came, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

#: How much of a bad value an error message shows.
_MAX_SHOWN = 200


Error = TypeVar("Error", bound="TopThetaArgumentError")


class TopThetaError(Exception):
    """Base class of every error raised by this package."""


@dataclass(frozen=True)
class Setting:
    """An argument and its value in a message: Python writes ``k=64``, a command its own option, ``--k 64``.

    Example:
        >>> str(Setting("estimator", "quantile"))
        "estimator='quantile'"
    """

    name: str
    value: object

    def __str__(self) -> str:
        return f"{self.name}={shown(self.value)}"


#: A part of a message. A command writes its settings as its own options.
Words = str | tuple[str | Setting, ...]


def _written(words: Words, write: Callable[[Setting], str] = str) -> str:
    pieces = (words,) if isinstance(words, str) else words
    return "".join(write(piece) if isinstance(piece, Setting) else piece for piece in pieces)


def _message(argument: str, expected: str, got: str, remedy: str | None) -> str:
    text = f"{argument}: expected {expected}, got {got}"
    return f"{text}; {remedy}" if remedy else text


class TopThetaArgumentError(TopThetaError):
    """Something is wrong with an argument; one of the classes below says what.

    Attributes:
        argument, expected, got, remedy: the parts of the message; remedy may be None.
    """

    def __init__(self, argument: str, expected: Words, got: Words, remedy: Words | None = None) -> None:
        self._words = (argument, expected, got, remedy)
        self.argument, self.expected, self.got = argument, _written(expected), _written(got)
        self.remedy = _written(remedy) if remedy else None
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        return _message(self.argument, self.expected, self.got, self.remedy)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """Pickle the parts of the message, so that another process can raise the error again."""
        return type(self), self._words

    def located(self: Error, where: str) -> Error:
        """Make the same error, which also says where the unexpected value was found, such as ``"in mine"``."""
        argument, expected, got, remedy = self._words
        return type(self)(argument, expected, (*((got,) if isinstance(got, str) else got), f", {where}"), remedy)

    def retold(self: Error, argument: str, write: Callable[[Setting], str]) -> Error:
        """Make the same error with another name for its argument, and with settings as ``write`` writes them."""
        _, expected, got, remedy = self._words
        retold = (_written(words, write) for words in (expected, got, remedy or ""))
        return type(self)(argument, *retold)


class TopThetaValueError(TopThetaArgumentError, ValueError):
    """An argument has an unusable value.

    Example:
        >>> str(TopThetaValueError("k", "a positive number", "-1", "pass k=128, for example"))
        'k: expected a positive number, got -1; pass k=128, for example'
    """


class TopThetaCombinationError(TopThetaValueError):
    """Two arguments exclude each other, or one needs the other. Each value alone is valid.

    Example:
        >>> str(TopThetaCombinationError("--k", "excludes", "--tau", "leave one of them out"))
        '--k excludes --tau; leave one of them out'
    """

    def __init__(
        self, argument: str, relation: Literal["needs", "excludes"], other: Words, remedy: Words | None = None
    ) -> None:
        super().__init__(argument, relation, other, remedy)

    def _sentence(self) -> str:
        text = f"{self.argument} {self.expected} {self.got}"
        return f"{text}; {self.remedy}" if self.remedy else text


class TopThetaTypeError(TopThetaArgumentError, TypeError):
    """An argument has an unusable type or dtype."""


class TopThetaNotImplementedError(TopThetaArgumentError, NotImplementedError):
    """An argument asks for something that this package does not do."""


class TopThetaBackendError(TopThetaError, RuntimeError):
    """The backend that should run the operators cannot run. The message says what is missing and what to type.

    Attributes:
        problem: the message without its remedy.
        remedy: what to type.

    Example:
        >>> str(TopThetaBackendError("op package", "a folder vendors/toptheta", "none", "see: toptheta doctor"))
        'op package: expected a folder vendors/toptheta, got none; see: toptheta doctor'
    """

    def __init__(self, what: str, expected: str, got: str, remedy: str) -> None:
        self.problem = _message(what, expected, got, None)
        self.remedy = remedy
        super().__init__(_message(what, expected, got, remedy))


def shown(value: object) -> str:
    """Shorten ``repr(value)`` for an error message. Where repr fails, as for ints of 5,000 digits, name the type."""
    try:
        text = repr(value)
    except Exception:  # a foreign object's repr may raise anything
        return f"a value of type {type(value).__name__} that cannot be shown"
    return shortened(text)


def shortened(text: str) -> str:
    """Cut the end off ``text`` where it is too long for an error message."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest a remedy for a name that is not ``known``.

    Example:
        >>> nearest("top_theta", ["dense", "top-theta"])
        'did you mean top-theta?'
        >>> nearest("workers", ["force", "seed"])
        'known are force, seed'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
