"""Finds the largest tau whose perplexity loss stays below a target, by bisection over held-out windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedModel

from .measurement import Measurement, Task
from .methods.kinds import make_method
from .summary import Change, change

#: Where tau is looked for.
LEAST, MOST = 1e-6, 0.1
#: Halvings of its logarithm: tau is found to about 5 %.
STEPS = 8


@dataclass(frozen=True)
class Tried:
    """A tau, with its change of perplexity against dense attention and its measurement."""

    tau: float
    change: Change
    measurement: Measurement


@dataclass(frozen=True)
class Found:
    """The result of the search.

    Attributes:
        below: the largest tau tried whose whole 95 % interval lies below the target; None if no tau did.
        above: the smallest tau tried whose interval reaches the target; None if no tau did.
    """

    below: Tried | None
    above: Tried | None


def search_tau(
    task: Task, model: PreTrainedModel, most_loss: float, *,
    progress: Callable[[Tried], None] = lambda tried: None, steps: int = STEPS,
) -> Found:  # fmt: skip
    """Search the largest tau at which the samples exclude a loss of ``most_loss`` percent.

    Args:
        task: perplexity task with at least three windows, since fewer have no interval.
        most_loss: largest acceptable loss, in percent of perplexity.
        progress: called with each tau that was tried.
        steps: number of times to halve the range from `LEAST` to `MOST`.
    """
    dense = task.measure(make_method("dense"), model)
    low, high = math.log(LEAST), math.log(MOST)
    below: Tried | None = None
    above: Tried | None = None
    for _ in range(steps):
        middle = (low + high) / 2
        tau = float(f"{math.exp(middle):.3g}")
        measurement = task.measure(make_method(f"tau:tau={tau}"), model)
        tried = Tried(tau, change(measurement, dense), measurement)
        progress(tried)
        if tried.change.high < most_loss:
            below, low = tried, middle
        else:  # also where the change is no number
            above, high = tried, middle
    return Found(below, above)
