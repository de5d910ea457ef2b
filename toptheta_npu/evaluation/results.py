"""Stores the points of an evaluation as JSON lines, as soon as each is finished, so that a run can resume.

The first line is the header; every other line is a point with its measurement. The header holds everything that the
figures depend on, so points with another header never enter the same file. More tasks and tables may join it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .._files import check_writable, file_error, held, read_bytes, write_atomically
from ..errors import TopThetaValueError, shown
from ..thresholds.fingerprint import differences
from .measurement import Measurement
from .reads import LayerReads, Reads

SCHEMA = 2
#: Files of the first one can be read, but not continued: they do not say of which weights they are.
_READABLE = (1, SCHEMA)
_MAX_BYTES = 2**31
_WHAT = "results of toptheta evaluate"
_ANEW = "name another file with -o, or add --restart to begin anew"
#: Parts of a header that say which model it is.
_OF_MODEL = ("fingerprint", "digests")
#: Parts of a header that may grow.
_JOINED = ("settings", "tables")


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
    """The facts that all points of a file share.

    Attributes:
        model: name of the model, without folders.
        fingerprint: fingerprint of the model, "" if it has none.
        settings: settings of each task, in JSON types.
        tables: name and digest of each table of thresholds.
        environment: versions of the software and hardware.
        digests: digests of every part of the model and of its tokenizer.
    """

    model: str
    fingerprint: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A file of results: its header, and the measurement of each point in the order of the file."""

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
    """Read a file that `ResultsFile` wrote.

    Raises:
        TopThetaValueError: the file cannot be read, or is not a file of results.
    """
    lines = read_bytes(path, _WHAT, _MAX_BYTES).splitlines()
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
    return Results(header, measurements)


class ResultsFile:
    """Writes a file of results. Within its context no other process may write the file.

    Args:
        path: the file; if it exists, its points count as finished.
        header: header of all points.
        restart: whether to discard the points in an existing file.

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
            stack.enter_context(held(self.path))
            if not self._restart and self.path.exists() and self.path.stat().st_size:
                found = read_results(self.path)
                if found.measurements:  # a run that ended before its first point holds nothing to keep
                    self._header, self.measurements = self._joined(found.header), dict(found.measurements)
            self._write(self.measurements)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def results(self) -> Results:
        """Return the current content of the file."""
        return Results(self._header, dict(self.measurements))

    def add(self, point: Point, measurement: Measurement) -> None:
        """Store a finished point; it is on the disk when this returns.

        Raises:
            TopThetaValueError: it cannot be written; the points before it are still in the file.
        """
        self._write(self.measurements | {point: measurement})

    def sort(self, order: Iterable[Point]) -> None:
        """Sort the points into this order, others last, so that resumed and uninterrupted runs leave the same file."""
        first = {point: self.measurements[point] for point in order if point in self.measurements}
        self._write(first | self.measurements)

    def _joined(self, found: Header) -> Header:
        """Add the new tasks and tables to the header found in the file."""
        ours, theirs = (json.loads(json.dumps(asdict(header))) for header in (self._header, found))
        others = [{**header, **dict.fromkeys(_OF_MODEL)} for header in (ours, theirs)]
        have, want = (_flat({**other, **_both(other, own)}) for other, own in (others[::-1], others))
        for name in sorted({*have, *want}):
            if have.get(name) != want.get(name):
                raise TopThetaValueError(
                    "--output", f"results with {name} = {shown(want.get(name))}",
                    f"{self.path} with {shown(have.get(name))}", f"use the same settings, {_ANEW}",
                )  # fmt: skip
        self._check_model(found)
        return Header(**ours | {name: {**theirs[name], **ours[name]} for name in _JOINED})

    def _check_model(self, found: Header) -> None:
        """Refuse the file of another model, since its figures must not be compared with this model's."""
        mine, theirs = self._header.digests, found.digests
        different = differences(self._header.fingerprint, found.fingerprint)
        unlike = [name for name in {**mine, **theirs} if theirs.get(name) != mine.get(name)]
        different += [name for name in unlike if name not in different]
        if different and mine and not theirs:
            got = f"{self.path}, which does not say of which weights: an earlier version wrote it"
        elif different:
            got = f"{self.path}, of another model (by its {' and '.join(different)})"
        else:
            return
        raise TopThetaValueError("--output", "results of this model", got, f"take that model, {_ANEW}")

    def _write(self, measurements: dict[Point, Measurement]) -> None:
        lines = [{"schema": SCHEMA, **asdict(self._header)}]
        lines += [{"point": asdict(each), "measurement": asdict(found)} for each, found in measurements.items()]
        write_atomically(self.path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
        self.measurements = measurements


def _both(header: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Select the tasks and tables of a header that the other also has."""
    return {name: {key: each for key, each in header[name].items() if key in other[name]} for name in _JOINED}


def _flat(content: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Name every value of nested mappings by its path."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {path + name: value}
    return found


def _read_header(path: str | Path, line: bytes) -> Header:
    try:
        entry = json.loads(line)
        schema = entry.pop("schema")
        if schema in _READABLE:
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
