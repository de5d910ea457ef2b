"""Keeps the points of an evaluation as JSON lines, appended as they are finished: an interrupted run goes on.

The first line is the header, every other one a point with its measurement. A header says everything that the figures
depend on, so points of another header never come into the same file. More tasks and tables may join it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .._files import check_writable, file_error, held, read_bytes, write_atomically
from ..errors import TopThetaValueError, shown
from .measurement import Measurement
from .reads import LayerReads, Reads

SCHEMA = 1
_MAX_BYTES = 2**31
_WHAT = "results of toptheta evaluate"


@dataclass(frozen=True)
class Point:
    """Name what is measured: a method on a task.

    Attributes:
        task: its name.
        method: as the command line has it, `MethodSpec.text`.
        label: of the method, for people.
        table: the name of the thresholds, for methods that need some.
        k: elements to keep; None for a method without such a number.
        first_layers: the k of the denser first layers, of a method that takes them from the first table.
    """

    task: str
    method: str
    label: str
    table: str | None = None
    k: int | None = None
    first_layers: str | None = None

    @property
    def name(self) -> str:
        """The point for people, such as "perplexity: top-theta, k=64, thresholds"."""
        return f"{self.task}: " + ", ".join(
            filter(None, (self.method, f"k={self.k}" if self.k is not None else "", self.table or ""))
        )


@dataclass(frozen=True)
class Header:
    """Hold what all points of a file have in common.

    Attributes:
        model: its name, without folders.
        fingerprint: of the model.
        settings: by task, as JSON has them.
        tables: name and digest of the thresholds.
        environment: versions of what computed.
    """

    model: str
    fingerprint: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """Hold a file of results: its header, and the measurements by point in the order of the file."""

    header: Header
    measurements: Mapping[Point, Measurement]

    def of_task(self, task: str) -> dict[Point, Measurement]:
        """Take the points of one task."""
        return {point: measurement for point, measurement in self.measurements.items() if point.task == task}

    @property
    def tasks(self) -> list[str]:
        """The tasks by their first point."""
        return list(dict.fromkeys(point.task for point in self.measurements))


def read_results(path: str | Path) -> Results:
    """Read a file that `ResultsFile` wrote; an unfinished last line, as a killed run leaves it, is left out.

    Raises:
        TopThetaValueError: the file cannot be read or holds something else.
    """
    return _parsed(path, read_bytes(path, _WHAT, _MAX_BYTES))[0]


class ResultsFile:
    """Write a file of results: a context, for as long as no other process may write it.

    Args:
        path: the file; if it is there, its points count as finished.
        header: of all points.
        restart: leave out what is there.

    Raises:
        TopThetaValueError: the file cannot be written, is being written by another process, holds something else, or
            was made with other settings.
    """

    def __init__(self, path: Path, header: Header, *, restart: bool = False) -> None:
        self.path = path
        self._header = header
        self._restart = restart
        self.measurements: dict[Point, Measurement] = {}

    def __enter__(self) -> ResultsFile:
        check_writable(self.path, "--output")
        with ExitStack() as stack:
            self._hold(stack)
            self._resume()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def results(self) -> Results:
        """Give what the file holds now."""
        return Results(self._header, dict(self.measurements))

    def add(self, point: Point, measurement: Measurement) -> None:
        """Keep a finished point: it is on the disk when this returns.

        Raises:
            TopThetaValueError: it cannot be written; the points before it are still in the file.
        """
        self._append(_line(point, measurement))
        self.measurements[point] = measurement

    def sort(self, order: Iterable[Point]) -> None:
        """Write the file anew with the points in this order, others after them.

        So a finished run leaves one file, however often it was interrupted.
        """
        first = {point: self.measurements[point] for point in order if point in self.measurements}
        self.measurements = first | self.measurements
        self._rewrite()

    def _hold(self, stack: ExitStack) -> None:
        try:
            stack.enter_context(held(self.path))
        except TopThetaValueError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            got = f"{self.path}, which another evaluation is writing"
            raise TopThetaValueError("--output", "a file of this run", got, "name another, or wait for it") from error

    def _resume(self) -> None:
        content = b"" if self._restart or not self.path.exists() else read_bytes(self.path, _WHAT, _MAX_BYTES)
        if not content.strip():
            self._rewrite()
            return
        found, complete = _parsed(self.path, content)
        self._header = self._joined(found.header)
        self.measurements = dict(found.measurements)
        if self._header != found.header or complete < len(content):
            self._rewrite()

    def _joined(self, found: Header) -> Header:
        """Join the header of what is there with the tasks and tables that are new."""
        ours, theirs = (_plain(asdict(header)) for header in (self._header, found))
        for name in ("settings", "tables"):
            ours[name] = theirs[name] | ours[name]
            theirs[name] = ours[name] | theirs[name]
        for path, have, want in _differences(theirs, ours):
            raise TopThetaValueError(
                "--output", f"results with {path} = {shown(want)}", f"{self.path} with {shown(have)}",
                "use the same settings, name another file with -o, or add --restart to begin anew",
            )  # fmt: skip
        return Header(**ours)

    def _rewrite(self) -> None:
        lines = [_header_line(self._header), *(_line(*each) for each in self.measurements.items())]
        write_atomically(self.path, b"".join(lines))

    def _append(self, line: bytes) -> None:
        # without a buffer nothing is left that closing would write again
        with _write_errors(self.path), open(self.path, "ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        got = f"{error.strerror or error} at {path}"
        remedy = "free some space and run the same command again: finished points are kept"
        raise TopThetaValueError("--output", "a place where results can be written", got, remedy) from error


def _header_line(header: Header) -> bytes:
    return _json_line({"schema": SCHEMA, **asdict(header)})


def _line(point: Point, measurement: Measurement) -> bytes:
    return _json_line({"point": asdict(point), "measurement": asdict(measurement)})


def _json_line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def _parsed(path: str | Path, content: bytes) -> tuple[Results, int]:
    """Read the results, and how many bytes they take: a line that a killed run began is not among them."""
    complete = content.rfind(b"\n") + 1
    lines = content[:complete].splitlines()
    if not lines:
        raise file_error(path, _WHAT, "an empty file", "correct the path")
    header = _read_header(path, lines[0])
    measurements: dict[Point, Measurement] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            entry = json.loads(line)
            measurements[Point(**entry["point"])] = _measurement(entry["measurement"])
        except (ValueError, KeyError, TypeError) as error:
            what = "a point of an evaluation"
            raise file_error(f"{path}:{number}", what, shown(line[:60]), "remove the line") from error
    return Results(header, measurements), complete


def _read_header(path: str | Path, line: bytes) -> Header:
    try:
        entry = json.loads(line)
        schema = entry.pop("schema")
        if schema == SCHEMA:
            return Header(**entry)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise file_error(path, _WHAT, "another file", "correct the path") from error
    raise file_error(path, f"{_WHAT} of schema {SCHEMA}", f"schema {shown(schema)}", "use the version that wrote it")


def _measurement(entry: dict[str, Any]) -> Measurement:
    return Measurement(
        **entry | {
            "scores": tuple(entry["scores"]),
            "reads": Reads(**entry["reads"]),
            "reads_all": Reads(**entry["reads_all"]),
            "layers": tuple(
                LayerReads(Reads(**layer["reads"]), tuple(layer["kept_over_target"])) for layer in entry["layers"]
            ),
        }
    )  # fmt: skip


def _plain(content: Any) -> Any:
    """Give a content as it comes back from a file."""
    return json.loads(json.dumps(content))


def _differences(have: Any, want: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name where two contents of JSON differ."""
    if isinstance(have, dict) and isinstance(want, dict):
        for name in sorted({*have, *want}):
            yield from _differences(have.get(name), want.get(name), f"{path}.{name}" if path else name)
    elif have != want:
        yield path, have, want
