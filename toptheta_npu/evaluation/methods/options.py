"""Makes the options of methods: their defaults, how they are read from words, and what a label says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from ...errors import TopThetaValueError, shown
from .method import Compensation, Selection


@dataclass(frozen=True)
class Option:
    """One option of a method.

    Attributes:
        default: its value where nothing is said.
        read: gives the value of a word, or raises a TopThetaValueError; the first argument is for the message.
        label: what a label says of a value, with ``{}`` for it; empty for an option that a label says otherwise.
        always: whether a label says so of the default, too.
    """

    default: Any
    read: Callable[[str, str], Any]
    label: str = ""
    always: bool = False

    def words(self, value: Any) -> str:
        """Give what a label says of ``value``."""
        return self.label.format(value) if self.always or value != self.default else ""


def one_of(default: str, choices: Sequence[str], label: str = "", *, always: bool = False) -> Option:
    """Make an option with a few values."""

    def read(where: str, word: str) -> str:
        if word not in choices:
            raise TopThetaValueError(where, f"one of {', '.join(choices)}", shown(word))
        return word

    return Option(default, read, label, always)


def whole_number(default: int, label: str) -> Option:
    """Make an option that is a whole number from 1 on."""

    def read(where: str, word: str) -> int:
        if not (word.isascii() and word.isdecimal() and len(word) < 10 and int(word) > 0):
            raise TopThetaValueError(where, "a whole number from 1 on", shown(word))
        return int(word)

    return Option(default, read, label)


def real_number(default: float, label: str) -> Option:
    """Make an option that is a number from 0 on."""

    def read(where: str, word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise TopThetaValueError(where, "a number >= 0", shown(word))
        return value

    return Option(default, read, label)


def compensations(modes: Sequence[str] = ("none", "exact")) -> Mapping[str, Option]:
    """Make the options of SDC and VMC, which are exact and true by default."""
    words = one_of("true", ("true", "false"))
    truth = Option(True, lambda where, word: words.read(where, word) == "true")
    return {"sdc": one_of("exact", modes), "vmc": truth}


#: The options that are compensations; a name's label says them as one suffix, but for gamma.
COMPENSATIONS = ("sdc", "vmc", "gamma")
#: Exact SDC and VMC unless the options say otherwise.
COMPENSATED = compensations()
GAMMA = real_number(Compensation().gamma, "gamma {:g}")
SELECTION = one_of("own", get_args(Selection))
