"""Outcomes for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.markup import escape

from .._tables import Table
from .points import Point
from .runner import Outcome


def listing(points: Sequence[Point]) -> Table:
    """List every point with what it takes for granted."""
    return Table("", ("check", "reading"), [(point.name, point.reading) for point in points])


def lines(outcome: Outcome, width: int) -> Iterator[str]:
    """Yield one line with rich's markup for a point. If it failed, yield also why, whence and what to do."""
    mark = "[green]pass[/green]" if outcome.passed else "[red]FAIL[/red]"
    point = outcome.point
    yield f"{mark}  {point.name:<{width}}  {escape(point.reading)}  ({outcome.seconds:.1f} s)"
    if outcome.problem is not None:
        yield f"      [bold]found:[/bold] {escape(outcome.problem)}"
        yield f"      [bold]rests on:[/bold] {escape(point.document)}"
        yield f"      [bold]change:[/bold] {escape(point.change)}"


def as_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Convert the outcomes to plain values, one entry for each point."""
    return [
        {
            "check": outcome.point.name, "passed": outcome.passed, "problem": outcome.problem,
            "seconds": outcome.seconds, "document": outcome.point.document, "change": outcome.point.change,
        }
        for outcome in outcomes
    ]  # fmt: skip
