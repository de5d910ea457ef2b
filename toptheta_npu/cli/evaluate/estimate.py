"""How long an evaluation takes: told at its start, from the time of one window."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from torch import Tensor

from ..._tables import counted
from .options import PERPLEXITY

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ...evaluation.methods.method import Method
    from ...evaluation.results import Point, ResultsFile
    from .command import Prepared

#: Fewer windows than these take hardly longer than an estimate.
_FEWEST = 8
#: What an estimate is rounded to: minutes, and beyond them hours.
_MINUTES = (1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120)


def say_estimate(console: Console, prepared: Prepared, network: PreTrainedModel, results: ResultsFile) -> None:
    """Time one window of perplexity, and say how long the points take that the results lack."""
    points = [point for point, _ in prepared.plan.missing(results.measurements) if point.task == PERPLEXITY]
    windows = prepared.tasks[PERPLEXITY].samples if points else 0
    if len(points) * windows < _FEWEST:
        return
    specs = dict(prepared.plan.points(PERPLEXITY))
    methods = [prepared.plan.method(specs[point], point.table, point.k) for point in points]
    positions = int(prepared.tasks[PERPLEXITY].settings["positions"])
    seconds = estimated_seconds(network, prepared.texts.scored, positions, methods)
    what = f"{counted(len(points), 'points')} x {counted(windows, 'windows')}"
    console.print(f"{PERPLEXITY} will take {in_words(seconds)}: {what}, judged by one window.")


def estimated_seconds(
    model: PreTrainedModel, windows: Tensor, positions: int, methods: Sequence[Method],
    clock: Callable[[], float] = time.perf_counter,
) -> float:  # fmt: skip
    """Time the first window, dense up to its last positions and then by the first and the last method, and multiply."""
    from ...evaluation.tasks.perplexity import PerplexityTask

    begun = clock()
    task = PerplexityTask(model, windows[:1], positions)
    dense = clock() - begun
    timed = [methods[0], *methods[1:][-1:]]
    begun = clock()
    for method in timed:
        task.measure(method, model)
    each = (clock() - begun) / len(timed)
    runs = len(windows) + len(methods) * task.windows_run_again(len(windows))
    return dense * runs + each * len(methods) * len(windows)


class FirstPoints:
    """Tells of tasks whose samples differ too much for one of them to be timed: what is left, from the first point."""

    def __init__(self, missing: Sequence[Point], clock: Callable[[], float] = time.perf_counter) -> None:
        self._left = Counter(point.task for point in missing)
        self._told = {PERPLEXITY}
        self._clock = clock
        self._begun = clock()

    def finished(self, point: Point) -> str | None:
        """Say after the first point of a task how long its others will take."""
        self._left[point.task] -= 1
        left, now = self._left[point.task], self._clock()
        seconds = now - self._begun
        told, is_first = None, point.task not in self._told
        if is_first and left:
            told = f"{point.task} will take {in_words(seconds * left)} more, judged by its first point."
        self._told.add(point.task)
        if not left:
            self._begun = now  # of the next task
        return told


def in_words(seconds: float) -> str:
    """Write a time as roughly as it is known.

    Example:
        >>> in_words(20), in_words(400), in_words(30000)
        ('less than a minute', 'about 5 minutes', 'about 8 hours')
    """
    minutes = seconds / 60
    if minutes < 0.75:
        return "less than a minute"
    if minutes > _MINUTES[-1] * 1.1:
        return f"about {minutes / 60:.0f} hours"
    nearest = min(_MINUTES, key=lambda each: abs(each / minutes - 1) if each < minutes else abs(minutes / each - 1))
    return f"about {counted(nearest, 'minutes')}"
