"""Chooses k for every head, so that the elements kept go where they save most error.

With a price per element, the best k of a head is the one with the least error + price * k: heads need not know of each
other (Lagrange multipliers). So one number, the price, stands for a budget of all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .checks import is_finite_number
from .curves import ErrorCurves
from .knots import Floats

#: Aim of a head that keeps its largest element only.
LARGEST_ONLY = 1


class Budget(NamedTuple):
    """How many elements each head keeps, and what that is expected to lose and to read at the longest row length.

    Attributes:
        head_k: int64 [L, Hq]; 1: the largest element only.
        price: squared error that one element less may cost.
        error: root of the mean squared error over layers, relative to the residual stream.
        value_rows: mean V rows of a step and KV head.
    """

    head_k: Tensor
    price: float
    error: float
    value_rows: float


def levels_of(k: Sequence[int], least: int) -> list[int]:
    """Give the aims that a head of a layer can have: its largest element only, then every k, at least ``least``.

    Example:
        >>> levels_of([16, 64, 256], 100)
        [1, 100, 100, 256]
    """
    return [LARGEST_ONLY, *(max(each, least) for each in k)]


def levels_at(error: Tensor, k: Sequence[int], layer_least: Sequence[int], price: float) -> Tensor:
    """Choose the level of every head at a price: index into `levels_of`, int64 [L, Hq].

    Args:
        error: float [1 + K, L, Hq], squared errors; noise that lets them rise with k is taken out.
        k: the k of the table.
        layer_least: per layer the least k that was calibrated.
        price: squared error per element, at least 0.
    """
    falling = error.double().cummin(dim=0).values
    cost = torch.tensor([levels_of(k, least) for least in layer_least], dtype=torch.float64).T[:, :, None]
    # of equal totals the cheapest
    return (falling + price * cost).argmin(dim=0)


def head_k_of(levels: Tensor, k: Sequence[int], layer_least: Sequence[int]) -> Tensor:
    """Turn levels [L, Hq] into numbers of elements: int64 [L, Hq]."""
    aims = torch.tensor([levels_of(k, least) for least in layer_least])
    return aims.gather(1, levels)


def path_of_prices(error: Tensor, k: Sequence[int], layer_least: Sequence[int], count: int) -> list[float]:
    """Choose ``count`` prices, descending, whose budgets keep from the fewest to the most elements in equal steps.

    Steps are equal in the logarithm of the elements that a head keeps on average.
    """
    measured = error.flatten(2).any(dim=0).any(dim=-1)
    most = _mean_k(error, k, layer_least, 0.0, measured)
    least = min(4.0, (LARGEST_ONLY + most) / 2)
    steps = np.geomspace(least, most, count).tolist()
    prices = {_price_for(error, k, layer_least, each, measured) for each in steps}
    # heads that all change their mind at once leave a single one
    return sorted(prices if len(prices) > 1 else prices | {price / 10 for price in prices}, reverse=True)


def choose(
    curves: ErrorCurves,
    k: Sequence[int],
    layer_least: Sequence[int],
    *,
    target_error: float | None = None,
    target_value_rows: float | None = None,
) -> Budget:
    """Choose the budget that is expected to meet a target at the longest row length; see ``ThresholdTable.budget``."""
    name, target = _target(target_error, target_value_rows)
    error = _monotone(curves.mean_error()[:, -1].sqrt().numpy(), rising=False)
    rows = _monotone(curves.mean_value_rows()[:, -1].numpy(), rising=True)
    reached = error if name == "target_error" else rows
    low, high = float(reached.min()), float(reached.max())
    if not low <= target <= high:
        nearest = low if target < low else high
        raise TopThetaValueError(
            name, f"{low:.4g} to {high:.4g}, which the measured budgets reach", shown(target),
            f"the nearest is {nearest:.4g}; other k among those of the calibration reach further",
        )  # fmt: skip
    price = curves.price.log()
    place = _interpolated(target, reached, price.numpy())
    chosen = float(np.exp(place))
    levels = levels_at(curves.error[..., -1], k, layer_least, chosen)
    at = (np.interp(-place, -price.numpy(), values) for values in (error, rows))
    return Budget(head_k_of(levels, k, layer_least), chosen, *(float(value) for value in at))


def _target(target_error: object, target_value_rows: object) -> tuple[str, float]:
    given = {"target_error": target_error, "target_value_rows": target_value_rows}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise TopThetaValueError("target_error", "target_error or target_value_rows", "both" if named else "neither")
    [(name, value)] = named.items()
    if not is_finite_number(value):
        raise TopThetaTypeError(name, "a number", shown(value))
    return name, float(value)  # type: ignore[arg-type]


def _monotone(values: Floats, *, rising: bool) -> Floats:
    result: Floats = np.maximum.accumulate(values) if rising else np.minimum.accumulate(values)
    return result


def _interpolated(target: float, reached: Floats, place: Floats) -> float:
    """Find where ``reached``, monotone, meets ``target``; of several places the one that loses least."""
    if reached[0] > reached[-1]:
        reached, place = reached[::-1], place[::-1]
    return float(np.interp(target, reached, place))


def _mean_k(error: Tensor, k: Sequence[int], layer_least: Sequence[int], price: float, measured: Tensor) -> float:
    levels = levels_at(error, k, layer_least, price)
    return float(head_k_of(levels, k, layer_least)[measured].double().mean())


def _price_for(error: Tensor, k: Sequence[int], layer_least: Sequence[int], wanted: float, measured: Tensor) -> float:
    """Find the highest price at which heads keep ``wanted`` elements on average, or more."""
    low, high = -40.0, 10.0  # exponents of 10
    for _ in range(60):
        middle = (low + high) / 2
        if _mean_k(error, k, layer_least, 10.0**middle, measured) >= wanted:
            low = middle
        else:
            high = middle
    return float(10.0**low)
