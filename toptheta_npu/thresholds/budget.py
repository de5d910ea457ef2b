"""Chooses k for every head, so that the elements kept go where they save most error.

With a price per element, the best k of a head is the one with the least error + price * k: heads need not know of each
other (Lagrange multipliers). So one number, the price, stands for a budget of all heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaCombinationError, TopThetaTypeError, TopThetaValueError, shown
from .checks import is_finite_number
from .curves import ErrorCurves
from .grid import ThresholdGrid
from .kinds import LARGEST_ONLY
from .knots import Floats

#: No head keeps an element more than it must at this price.
_HIGHEST = 1e10


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


def aims_of(table: ThresholdGrid) -> Tensor:
    """Give the aims that the heads of a layer can have: the largest element only, then every k: int64 [1 + K, L]."""
    alone = torch.full((1, table.num_layers), LARGEST_ONLY, dtype=torch.int64, device="cpu")
    return torch.cat([alone, table.calibrated_targets])


def levels_at(error: Tensor, aims: Tensor, price: float, alone: bool = True) -> Tensor:
    """Choose which of the aims each head has at a price: index into the first dimension, int64 [L, Hq].

    Args:
        error: float [1 + K, L, Hq], squared errors; noise that lets them rise with k is taken out.
        aims: int64 [1 + K, L], of `aims_of`.
        price: squared error per element, at least 0.
        alone: whether a head may keep its largest element only, for which only VMC makes up.

    Example:
        >>> error, aims = torch.tensor([[[0.9, 0.25]], [[0.1, 0.2]], [[0.0, 0.0]]]), torch.tensor([[1], [10], [100]])
        >>> levels_at(error, aims, 0.1), levels_at(error, aims, 0.01), levels_at(error, aims, 0.0)
        (tensor([[0, 0]]), tensor([[1, 0]]), tensor([[2, 2]]))
    """
    falling = error.double().cummin(dim=0).values
    if not alone:
        falling[0] = torch.inf
    # of equal totals the cheapest
    return (falling + price * aims[..., None].float()).argmin(dim=0)


def path_of_prices(error: Tensor, aims: Tensor, count: int, alone: bool = True) -> list[float]:
    """Choose ``count`` prices, descending, whose budgets keep from the fewest to the most elements in equal steps.

    Steps are equal in the logarithm of the elements that a head keeps on average.
    """
    measured = error.flatten(2).any(dim=0).any(dim=-1)

    def mean_k(price: float) -> float:
        return float(head_k_of(aims, levels_at(error, aims, price, alone))[measured].double().mean())

    most, fewest = mean_k(0.0), mean_k(_HIGHEST)
    steps = np.geomspace(max(fewest, min(4.0, (fewest + most) / 2)), most, count).tolist()
    prices = {_price_for(each, mean_k) for each in steps}
    # heads that all change their mind at once leave a single one
    return sorted(prices if len(prices) > 1 else prices | {price / 10 for price in prices}, reverse=True)


def head_k_at(table: ThresholdGrid, curves: ErrorCurves, price: float) -> Tensor:
    """Choose the k of every head at a price, by its errors at the longest row length: int64 [L, Hq]."""
    aims = aims_of(table)
    return head_k_of(aims, levels_at(curves.error[..., -1], aims, price, alone=curves.vmc))


def head_k_of(aims: Tensor, levels: Tensor) -> Tensor:
    """Give the k of every head from ``aims`` [1 + K, L] at its level: int64 [L, Hq]."""
    return aims[..., None].expand(-1, -1, levels.shape[-1]).gather(0, levels[None])[0]


def levels_along(error: Tensor, aims: Tensor, prices: Iterable[float], alone: bool = True) -> Tensor:
    """Choose the levels at every one of P prices, as `levels_at` does: int64 [P, L, Hq]."""
    return torch.stack([levels_at(error, aims, price, alone) for price in prices])


def needed_curves(table: ThresholdGrid, argument: str, purpose: str = "") -> ErrorCurves:
    """Give the error curves of a table.

    Raises:
        TopThetaValueError: it has none.
    """
    if table.curves is None:
        remedy = "measure them with calibrate_error_curves, or toptheta calibrate --error-curves"
        raise TopThetaValueError(argument, f"a table with error curves{purpose}", "one without", remedy)
    return table.curves


def choose(
    table: ThresholdGrid, target_error: float | None, target_value_rows: float | None, sdc: str, vmc: bool
) -> Budget:
    """Choose the budget that is expected to meet a target at the longest row length; see ``ThresholdTable.budget``."""
    name, target = _target(target_error, target_value_rows)
    curves = needed_curves(table, "thresholds", f" for {name}")
    for option, wanted, measured in (("sdc", sdc, curves.sdc), ("vmc", vmc, curves.vmc)):
        if wanted != measured:
            expected = f"{measured!r}, with which the error curves of the table were measured"
            raise TopThetaValueError(option, expected, repr(wanted), "use that, or measure them anew")
    error = np.minimum.accumulate(curves.mean_error()[:, -1].sqrt().numpy())
    rows = np.maximum.accumulate(curves.mean_value_rows()[:, -1].numpy())
    reached = error if name == "target_error" else rows
    low, high = float(reached.min()), float(reached.max())
    if not low <= target <= high:
        nearest = low if target < low else high
        raise TopThetaValueError(
            name, f"{low:.4g} to {high:.4g}, which the measured budgets reach", shown(target),
            f"the nearest is {nearest:.4g}; calibrate with other k to reach further",
        )  # fmt: skip
    prices = curves.price.log().numpy()
    price = _where(reached, target, prices)
    head_k = head_k_at(table, curves, float(np.exp(price)))
    forecast = (float(np.interp(-price, -prices, values)) for values in (error, rows))
    return Budget(head_k, float(np.exp(price)), *forecast)


def _target(target_error: object, target_value_rows: object) -> tuple[str, float]:
    given = {"target_error": target_error, "target_value_rows": target_value_rows}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) > 1:
        raise TopThetaCombinationError("target_error", "excludes", "target_value_rows", "leave one of them out")
    if not named:
        raise TopThetaValueError("target_error", "target_error or target_value_rows", "neither")
    [(name, value)] = named.items()
    if not is_finite_number(value):
        raise TopThetaTypeError(name, "a number", shown(value))
    return name, float(value)  # type: ignore[arg-type]


def _where(reached: Floats, target: float, prices: Floats) -> float:
    """Find the logarithm of the price at which ``reached``, monotone along ``prices``, meets ``target``."""
    if reached[0] > reached[-1]:
        reached, prices = reached[::-1], prices[::-1]
    return float(np.interp(target, reached, prices))


def _price_for(wanted: float, mean_k: Callable[[float], float]) -> float:
    """Find the highest price at which heads keep ``wanted`` elements on average, or more."""
    low, high = -40.0, np.log10(_HIGHEST)
    for _ in range(60):
        middle = (low + high) / 2
        if mean_k(10.0**middle) >= wanted:
            low = middle
        else:
            high = middle
    return float(10.0**low)
