"""Names the arrays of a calibration's statistics for a file of its state, and fills them back in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TopThetaValueError
from .moments import Moments
from .sketch import SurvivalSketch

Arrays = dict[str, NDArray[Any]]
Statistic = Moments | SurvivalSketch

#: The attributes that are all of a statistic's state; a new class of statistics is one entry.
STATE_OF: Mapping[type, tuple[str, ...]] = {
    Moments: ("count", "mean", "m2"),
    SurvivalSketch: ("rows", "counts", "smallest", "largest"),
}


def named(prefix: str, statistics: Sequence[Any]) -> dict[str, Statistic]:
    """Name the statistics in nested lists, each by its place.

    Example:
        >>> list(named("moments", [[Moments((1, 2)), Moments((1, 2))]]))
        ['moments.0.0', 'moments.0.1']
    """
    found: dict[str, Statistic] = {}
    for index, each in enumerate(statistics):
        name = f"{prefix}.{index}"
        found |= {name: each} if type(each) in STATE_OF else named(name, each)
    return found


def arrays_of(statistics: Mapping[str, Statistic]) -> Arrays:
    """Collect every array of every statistic, by the statistic's name and its own."""
    return {
        f"{name}.{attribute}": getattr(statistic, attribute)
        for name, statistic in statistics.items()
        for attribute in STATE_OF[type(statistic)]
    }


def fill(statistics: Mapping[str, Statistic], arrays: Arrays) -> None:
    """Give new ``statistics`` the arrays that `arrays_of` took, and take these out of ``arrays``.

    Raises:
        TopThetaValueError: an array is missing, has another shape or dtype, or holds what no statistic can.
    """
    for name, statistic in statistics.items():
        for attribute in STATE_OF[type(statistic)]:
            array = take(arrays, f"{name}.{attribute}", like=getattr(statistic, attribute))
            setattr(statistic, attribute, array)


def take(arrays: Arrays, name: str, like: NDArray[Any]) -> NDArray[Any]:
    """Take the array ``name`` out of ``arrays``, as a copy, and check it against ``like``, one that is new.

    Raises:
        TopThetaValueError: as `fill`.
    """
    array = arrays.pop(name, None)
    if array is None:
        raise TopThetaValueError(name, f"{like.dtype} of shape {list(like.shape)}", "nothing")
    if array.dtype != like.dtype or array.shape != like.shape:
        got = f"{array.dtype} of shape {list(array.shape)}"
        raise TopThetaValueError(name, f"{like.dtype} of shape {list(like.shape)}", got)
    if array.dtype.kind == "i" and (array < 0).any():
        raise TopThetaValueError(name, "counts of at least 0", str(int(array.min())))
    if array.dtype.kind == "f":
        # an empty cell may hold an infinity, as in a new statistic
        good = np.isfinite(array) | (array == like)
        if not good.all():
            raise TopThetaValueError(name, "finite numbers", str(array[~good][0]))
    return array.copy()
