"""What the results say: losses with their bounds, and how many V rows one way to choose needs more than another.

A loss is the change of nats per token against dense attention; it is shown as change of perplexity in percent. Between
two measured points it is straight in the logarithm of the V rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.student import student_quantile

Floats = NDArray[np.float64]


class Bounded(NamedTuple):
    """A figure with its 95 % bounds."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2, *, sign: bool = False, unit: str = "") -> str:
        """Write it as "1.70 (1.42 to 2.05)"."""
        value, low, high = (f"{each:{'+' if sign else ''}.{digits}f}" for each in self)
        return f"{value} ({low} to {high}){unit}"


def mean_of(values: Floats) -> Bounded:
    """Bound the mean of independent values, Student's t.

    Example:
        >>> mean_of(np.array([1.0, 2.0, 3.0])).text()
        '2.00 (-0.48 to 4.48)'
    """
    mean = float(values.mean())
    if len(values) < 2:
        return Bounded(mean, -math.inf, math.inf)
    half = student_quantile(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Bounded(mean, mean - half, mean + half)


def percent(nats: Bounded) -> Bounded:
    """Turn a change in nats into a change of perplexity in percent."""
    return Bounded(*(100 * math.expm1(each) for each in nats))


@dataclass(frozen=True)
class Runs:
    """Windows under several arms.

    Attributes:
        losses: by arm, nats against dense attention [W].
        value_rows: by arm, V rows per row and KV head, all layers, [W].
        keys: V rows of dense attention, on average.
        dense: nats of dense attention [W].
        lines: by arm, the lines of the file.
    """

    losses: Mapping[str, Floats]
    value_rows: Mapping[str, Floats]
    keys: float
    dense: Floats
    lines: Mapping[str, Sequence[Mapping[str, Any]]]

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]], arms: Iterable[str]) -> Runs:
        """Take the windows that all arms have which were measured at all."""
        found: dict[str, dict[int, Mapping[str, Any]]] = {}
        for line in lines:
            found.setdefault(line["arm"], {})[line["window"]] = line
        present = {arm: found[arm] for arm in arms if arm in found}
        windows = sorted(set.intersection(*(set(each) for each in present.values()))) if present else []
        ordered = {arm: [each[window] for window in windows] for arm, each in present.items()}

        def figures(arm: str, name: str) -> Floats:
            return np.array([line[name] for line in ordered[arm]], dtype=np.float64)

        dense = figures("dense", "nats")
        return cls(
            {arm: figures(arm, "nats") - dense for arm in ordered},
            {arm: figures(arm, "value_rows") for arm in ordered},
            float(figures("dense", "keys").mean()), dense, ordered,
        )  # fmt: skip

    def curve(self, arms: Iterable[str]) -> Curve:
        """Put arms into the order of their V rows."""
        present = [arm for arm in arms if arm in self.losses]
        order = sorted(present, key=lambda arm: float(self.value_rows[arm].mean()))
        return Curve(np.stack([self.value_rows[arm] for arm in order]), np.stack([self.losses[arm] for arm in order]))


@dataclass(frozen=True)
class Curve:
    """Points of one way to choose, by ascending V rows: V rows and losses, both [M, W]."""

    value_rows: Floats
    losses: Floats

    def at(self, rows: float) -> Floats:
        """Interpolate the loss of every window where the mean number of V rows is ``rows``.

        Raises:
            TopThetaValueError: ``rows`` lies outside the points.

        Example:
            >>> Curve(np.array([[100.0], [400.0]]), np.array([[0.2], [0.1]])).at(200)
            array([0.15])
        """
        means = self.value_rows.mean(axis=1)
        if not means[0] <= rows <= means[-1]:
            raise TopThetaValueError("rows", f"{means[0]:.0f} to {means[-1]:.0f}, which were measured", f"{rows:.0f}")
        upper = min(max(int(np.searchsorted(means, rows)), 1), len(means) - 1)
        low, high = np.log(means[upper - 1]), np.log(means[upper])
        weight = float((np.log(rows) - low) / (high - low))
        return (1 - weight) * self.losses[upper - 1] + weight * self.losses[upper]

    def reaches(self, rows: float) -> bool:
        """Tell whether ``rows`` lies between the points."""
        means = self.value_rows.mean(axis=1)
        return bool(means[0] <= rows <= means[-1])
