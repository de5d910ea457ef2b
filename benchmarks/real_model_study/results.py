"""Results as JSON lines: a header of all that the figures depend on, then a line as soon as it is measured.

A run that was killed goes on with what is missing; results of other settings never come into the same file.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from toptheta_npu._files import held, write_atomically
from toptheta_npu.errors import TopThetaValueError, shown


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read header and lines; one that a killed run began is left out. Without a file there are none."""
    if not path.exists():
        return {}, []
    complete = path.read_text().rpartition("\n")[0].splitlines()
    header, *lines = [json.loads(line) for line in complete] or [{}]
    return header, lines


class Lines:
    """A file of results: a context, for as long as no other process may write it.

    Args:
        path: the file; what is in it counts as measured.
        header: of all lines.
        keys: the entries that tell lines apart.

    Raises:
        TopThetaValueError: the file has another header, or another process writes it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
        >>> for _ in range(2):
        ...     with Lines(path, {"seed": 0}, ("window",)) as lines:
        ...         if not lines.has(window=3):
        ...             lines.add({"window": 3, "nats": 2.5})
        >>> read(path)
        ({'seed': 0}, [{'window': 3, 'nats': 2.5}])
    """

    def __init__(self, path: Path, header: Mapping[str, Any], keys: Sequence[str]) -> None:
        self.path, self._keys = path, tuple(keys)
        self._header: dict[str, Any] = json.loads(json.dumps(header))
        self._known: set[tuple[Any, ...]] = set()
        self._adding = threading.Lock()

    def __enter__(self) -> Lines:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(held(self.path))
            found, lines = read(self.path)
            for name in sorted({*found, *self._header} if found else ()):
                have, want = found.get(name), self._header.get(name)
                if have != want:
                    expected, got = f"results with {name} = {shown(want)}", shown(have)
                    raise TopThetaValueError(str(self.path), expected, got, "move it away to measure anew")
            self._known = {self._key(line) for line in lines}
            self._write(lines)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _key(self, line: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(line[name] for name in self._keys)

    def has(self, **key: Any) -> bool:
        """Tell whether a line is there."""
        return self._key(key) in self._known

    def add(self, line: Mapping[str, Any]) -> None:
        """Keep a line: it is on the disk when this returns. Several threads may add."""
        with self._adding, open(self.path, "a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
            self._known.add(self._key(line))

    def sort(self) -> None:
        """Put the lines into the order of their keys, so that a finished file is the same however it came about."""
        self._write(sorted(read(self.path)[1], key=self._key))

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        whole = [json.dumps(each, ensure_ascii=False) + "\n" for each in (self._header, *lines)]
        write_atomically(self.path, "".join(whole))
