"""Names the kinds of thresholds, of lookups and of statistics, and how long a row may be."""

from __future__ import annotations

from typing import Literal, get_args

Placement = Literal["pre_softmax", "post_softmax"]
Estimator = Literal["algorithm1", "pooled", "quantile"]
DiscardedStatistic = Literal["geometric_mean", "mean"]
Extrapolation = Literal["nearest", "fitted"]
LookupForm = Literal["tabulated", "fitted"]

#: Placement of the threshold test, and the unit of theta that goes with it.
UNITS: dict[str, str] = {"pre_softmax": "scaled score", "post_softmax": "probability"}
ESTIMATORS: tuple[str, ...] = get_args(Estimator)
#: What the calibrated discarded mass of a cell is of its rows' masses.
DISCARDED_STATISTICS: tuple[str, ...] = get_args(DiscardedStatistic)
#: The longest row, and the largest k: 16 Mi elements. A table keeps one row of numbers per length on the device.
MAX_LENGTH = 2**24
