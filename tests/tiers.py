"""Which tests `make test` leaves to `make test-full` (marker "full"), and that leaves to `make test-long` ("long")."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any
from zlib import crc32

import pytest
from _pytest.mark import ParameterSet

full = pytest.mark.full
#: Minutes for what seldom breaks alone: `make test-long`.
long = pytest.mark.long


def product(*axes: Iterable[Any]) -> list[ParameterSet]:
    """All combinations, for `parametrize`; `make test` runs as few as show each value of each axis once.

    Example:
        >>> [" ".join(map(str, found.values)) for found in product("ab", (1, 2, 3)) if not found.marks]
        ['a 1', 'a 3', 'b 2']
    """
    values = [list(axis) for axis in axes]
    kept = {tuple(step % len(axis) for axis in values) for step in range(max(map(len, values)))}
    everywhere = itertools.product(*(range(len(axis)) for axis in values))
    return [_joined([axis[at] for axis, at in zip(values, place, strict=True)], place in kept) for place in everywhere]


def only(quick: Collection[Any] | Callable[[Any], bool], values: Iterable[Any]) -> list[ParameterSet]:
    """The values of one axis, or tuples of several; `make test` runs those that are, or pass, ``quick``.

    Example:
        >>> [found.values[0] for found in only({2}, (1, 2, 3)) if not found.marks]
        [2]
    """
    passes = quick if callable(quick) else quick.__contains__
    return [
        _joined(
            list(value) if isinstance(value, tuple) and not isinstance(value, ParameterSet) else [value], passes(value)
        )
        for value in values
    ]


def sample(values: Iterable[Any], every: int) -> list[ParameterSet]:
    """The values of one axis; only one in ``every`` of them runs outside of `make test-long`.

    Example:
        >>> [found.values[0] for found in sample(range(6), 3) if not found.marks]
        [0, 3]
    """
    return [pytest.param(value, marks=[long] if at % every else []) for at, value in enumerate(values)]


def thin(items: list[pytest.Item]) -> None:
    """Let `make test` run about every third case of a test with more than 16; a hash of their names picks them.

    Every third in their order would leave out the same value each time.
    """
    cases = Counter(_test_of(item) for item in items)
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(full)
        if cases[_test_of(item)] > 16 and crc32(item.nodeid.encode()) % 3:
            item.add_marker(full)


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _joined(values: list[Any], quick: bool) -> ParameterSet:
    """One parameter set of values that may have marks of their own."""
    flat, marks = [], [] if quick else [full]
    for value in values:
        if isinstance(value, ParameterSet):
            flat += value.values
            marks += value.marks
        else:
            flat.append(value)
    return pytest.param(*flat, marks=marks)
