"""Quantiles of Student's t, without scipy."""

from __future__ import annotations

import math
import statistics
from functools import lru_cache

_MANY = 1000  # degrees of freedom from which the normal law will do: it is 0.13 % less there
_NORMAL = statistics.NormalDist().inv_cdf(0.975)


@lru_cache
def student_quantile(freedom: int | None) -> float:
    """Compute the 97.5 % quantile of Student's t with these degrees of freedom; None: the normal distribution.

    Example:
        >>> [round(student_quantile(freedom), 3) for freedom in (2, 3, 10)]
        [4.303, 3.182, 2.228]
    """
    if freedom is None or freedom > _MANY:
        return _NORMAL
    low, high = _NORMAL, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return low


def _within(t: float, freedom: int) -> float:
    """Compute P(|T| <= t), by the finite sum that it is for whole degrees (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    odd, cosine = freedom % 2, math.cos(angle)
    term, total = (cosine if odd else 1.0), 0.0
    for j in range(2 + odd, freedom + 1, 2):
        total += term
        term *= (j - 1) / j * cosine**2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
