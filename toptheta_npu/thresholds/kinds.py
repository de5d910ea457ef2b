"""Names the kinds of thresholds, of lookups and of statistics, and how long a row may be."""

from __future__ import annotations

from typing import Literal, get_args

Placement = Literal["pre_softmax", "post_softmax"]
#: What thresholds of whole rows are compared with; "sampled_softmax" is a probability by the LSE of a sample of keys.
RowPlacement = Literal["pre_softmax", "post_softmax", "sampled_softmax"]
#: The denominator of a probability: the LSE of the whole row, or its estimate from a sample of keys.
Lse = Literal["exact", "sampled"]
Estimator = Literal["algorithm1", "pooled"]
DiscardedStatistic = Literal["geometric_mean", "mean"]
LookupForm = Literal["tabulated", "fitted"]

#: Placement of the threshold test, and its unit of theta.
UNITS: dict[str, str] = {"pre_softmax": "scaled score", "post_softmax": "probability"}
ESTIMATORS: tuple[str, ...] = get_args(Estimator)
#: The mean that turns the discarded masses of a cell's rows into one number.
DISCARDED_STATISTICS: tuple[str, ...] = get_args(DiscardedStatistic)
#: The longest row, and the largest k: 16 Mi elements. A table keeps one row of numbers per length on the device.
MAX_LENGTH = 2**24
