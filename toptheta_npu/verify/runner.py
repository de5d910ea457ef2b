"""Runs points one after the other; a point that does not come back ends the process, with its remedy."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .calls import Mismatch
from .points import Point


@dataclass(frozen=True)
class Outcome:
    """What came of a point.

    Attributes:
        problem: what was wrong; None where nothing was.
        seconds: that it took, with loading what it needs.
    """

    point: Point
    problem: str | None
    seconds: float

    @property
    def passed(self) -> bool:
        return self.problem is None


@torch.no_grad()
def run_points(
    points: Sequence[Point], device: str, seconds: float, finished: Callable[[Outcome], None], gone: Callable[[], None]
) -> list[Outcome]:
    """Run every point; after one that fails the next ones run too.

    Args:
        seconds: after which a point counts as hanging. Nothing can end its call, so the process ends with status 1.
        finished: called with each outcome.
        gone: called before the process ends so.
    """
    outcomes = []
    for point in points:
        started = time.perf_counter()

        def hangs(point: Point = point) -> None:
            finished(Outcome(point, f"no answer within {seconds:g} s; the device hangs in this call", seconds))
            gone()
            sys.stdout.flush()
            os._exit(1)

        with _watched(seconds, hangs):
            problem = _problem_of(point, device)
        outcomes.append(Outcome(point, problem, time.perf_counter() - started))
        finished(outcomes[-1])
    return outcomes


@contextmanager
def _watched(seconds: float, hangs: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, hangs)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _problem_of(point: Point, device: str) -> str | None:
    try:
        point.run(device)
        getattr(torch, device).synchronize()
    except Mismatch as mismatch:
        return str(mismatch)
    except Exception as error:  # whatever the device or its libraries say is the finding
        return f"{type(error).__name__}: {str(error).strip() or 'no message'}"
    return None
