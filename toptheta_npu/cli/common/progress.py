"""Progress of a long command."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Done(MofNCompleteColumn):
    """How much is done, and of how much if that is known. Nothing for what is not counted."""

    def render(self, task: Task) -> Text:
        if task.total is not None:
            return super().render(task)
        return Text(f"{int(task.completed)}" if task.completed else "")


class _Left(TimeRemainingColumn):
    """The time left, where it can be told."""

    def render(self, task: Task) -> Text:
        return Text() if task.time_remaining is None else Text("left: ").append_text(super().render(task))


#: Lines in place of a bar for one piece of work, at most.
_MAX_LINES = 20


class Bars:
    """Progress bars, one after the other, which leave nothing behind. Where there is no terminal, none."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), _Done(), TimeElapsedColumn(), _Left())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._console = console
        self._task: TaskID | None = None

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def line(self, name: str, done: int, total: int, unit: str) -> None:
        """Say in a line, where there is no terminal for a bar, how much of a piece of work is done."""
        if not self._console.is_terminal and done * _MAX_LINES // total > (done - 1) * _MAX_LINES // total:
            text = f"{name}: {done} of {total} {unit}"
            self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def count(self, name: str, total: int, unit: str) -> Callable[[int], None]:
        """Put a new bar in the place of the last, and return the function that sets it, or says so in a line."""
        update = self.add(name, total)

        def done(count: int) -> None:
            update(count)
            self.line(name, count, total, unit)

        return done

    def add(self, name: str, total: int | None) -> Callable[[int], None]:
        """Put a new bar in the place of the last, and return the function that sets it."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        task = self._task = self._bars.add_task(name, total=total)
        return lambda done: self._bars.update(task, completed=done)
