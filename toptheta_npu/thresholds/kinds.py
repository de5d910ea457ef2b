"""Names the kinds of thresholds, of lookups and of statistics, and how long a row may be."""

from __future__ import annotations

from typing import Literal, get_args

Placement = Literal["pre_softmax", "post_softmax"]
#: How whole rows are compared with thresholds: with a probability also by the LSE of a sample of keys.
RowPlacement = Literal["pre_softmax", "post_softmax", "sampled_softmax"]
#: What a probability is a share of: the whole row, or what a sample of its keys tells of it.
Lse = Literal["exact", "sampled"]
Estimator = Literal["algorithm1", "pooled"]
DiscardedStatistic = Literal["geometric_mean", "mean"]
LookupForm = Literal["tabulated", "fitted"]

#: Placement of the threshold test, and the unit of theta that goes with it.
UNITS: dict[str, str] = {"pre_softmax": "scaled score", "post_softmax": "probability"}
ESTIMATORS: tuple[str, ...] = get_args(Estimator)
#: What the calibrated discarded mass of a cell is of its rows' masses.
DISCARDED_STATISTICS: tuple[str, ...] = get_args(DiscardedStatistic)
#: The longest row, and the largest k: 16 Mi elements. A table keeps one row of numbers per length on the device.
MAX_LENGTH = 2**24
