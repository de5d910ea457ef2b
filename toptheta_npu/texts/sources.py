"""Where documents come from. All of them are read piece by piece, and no file stays open in between."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from .._files import file_error
from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .decoding import CHUNK, decoded, read_at

#: Characters of a document that are tokenised at a time, about.
PIECE = 2**17
#: A longer line of JSON is not one.
MAX_LINE = 2**26
_ROWS = 64


class Piece(NamedTuple):
    """A part of a document.

    Attributes:
        text: cut after a line or a word, where there is one.
        ends: whether the document ends with it.
    """

    text: str
    ends: bool


class Source(Protocol):
    """A file or data set: some documents.

    Attributes:
        name: without the folder that it lies in.
    """

    name: str

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of its documents, one after the other. They can be read once."""

    def used(self) -> str:
        """Tell how much was read so far, and its digest."""


class _Digest:
    def __init__(self, unit: str) -> None:
        self._hash = hashlib.sha256()
        self._unit = unit
        self._count = 0

    def add(self, content: bytes, count: int | None = None) -> None:
        self._hash.update(content)
        self._count += len(content) if count is None else count

    def __str__(self) -> str:
        return f"first {self._count} {self._unit}, sha256 {self._hash.hexdigest()}"


_BEGINNING = re.compile(r"first ([1-9]\d{0,17}) bytes, sha256 ([0-9a-f]{64})")


class StoredText:
    """One document that is in memory.

    Example:
        >>> list(StoredText("greeting", "hello world").pieces())
        [Piece(text='hello world', ends=True)]
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text
        self._digest = _Digest("bytes")

    def pieces(self) -> Iterator[Piece]:
        """Yield the document in pieces."""
        self._digest.add(self._text.encode(errors="replace"))
        yield from cut(iter([self._text]))

    def used(self) -> str:
        """Tell how much was read so far, and its digest."""
        return str(self._digest)


class PlainText:
    """A text file: one document.

    Args:
        path: the file; errors name it as it was given.
        name: for the record.

    Raises:
        TopThetaValueError: while it is read: bytes that are not text in UTF-8, or a file that cannot be read.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._digest = _Digest("bytes")

    def pieces(self) -> Iterator[Piece]:
        """Yield the document in pieces."""
        yield from cut(decoded(self.path, self._digest.add))

    def used(self) -> str:
        """Tell how much was read so far, and its digest."""
        return str(self._digest)


class JsonLines:
    """A file of JSON objects, one a line: the texts in one of their fields are the documents.

    Args:
        path, name: as :class:`PlainText`.
        field: of the objects.

    Raises:
        TopThetaTypeError: the field is not text; the message has file and line.
        TopThetaValueError: as :class:`PlainText`; or a line is not a JSON object with this field.
    """

    def __init__(self, path: Path, name: str, field: str = "text") -> None:
        self.path = path
        self.name = name
        self._field = field
        self._digest = _Digest("bytes")

    def pieces(self) -> Iterator[Piece]:
        """Yield the documents in pieces. Leave out lines without anything."""
        for number, line in enumerate(self._lines(), start=1):
            if line.strip():
                yield from cut(iter([self._text_of(f"{self.path}:{number}", line)]))

    def used(self) -> str:
        """Tell how much was read so far, and its digest."""
        return str(self._digest)

    def _lines(self) -> Iterator[str]:
        held: list[str] = []
        size = 0
        for text in decoded(self.path, self._digest.add):
            first, *others = text.split("\n")
            held.append(first)
            size += len(first)
            if size > MAX_LINE:
                got = "a longer one: is it JSON Lines?"
                raise file_error(self.path, f"lines of at most {MAX_LINE} characters", got, "write one object a line")
            if others:
                yield "".join(held)
                yield from others[:-1]
                held, size = [others[-1]], len(others[-1])
        yield "".join(held)

    def _text_of(self, where: str, line: str) -> str:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error).split("\n")[0]
            raise TopThetaValueError(
                where, "a JSON object", f"{shown(line.strip())} ({reason})", "correct the line"
            ) from error
        if not isinstance(entry, dict):
            raise TopThetaValueError(where, "a JSON object", shown(entry), f'write {{"{self._field}": "..."}}')
        return checked_text(where, self._field, entry)


class DatasetRows:
    """A data set that ``datasets`` saved to disk: the texts of one column are the documents.

    Args:
        path: the folder that ``save_to_disk`` wrote.
        name: for the record.
        field: the column.

    Raises:
        ModuleNotFoundError: ``datasets`` is not installed.
        TopThetaTypeError: a row is not text.
        TopThetaValueError: the folder cannot be loaded, holds several splits, or has no such column.
    """

    def __init__(self, path: Path, name: str, field: str = "text") -> None:
        self.path = path
        self.name = name
        self._field = field
        self._digest = _Digest("rows")
        self._rows = _load(path, field)

    def pieces(self) -> Iterator[Piece]:
        """Yield the documents in pieces."""
        for start in range(0, len(self._rows), _ROWS):
            texts = self._rows[start : start + _ROWS][self._field]
            for row, text in enumerate(texts, start=start):
                text = checked_text(f"{self.path}, row {row}", self._field, {self._field: text})
                self._digest.add(text.encode(), 1)
                yield from cut(iter([text]))

    def used(self) -> str:
        """Tell how much was read so far, and its digest."""
        return str(self._digest)


def was_read(source: Source) -> bool:
    """Tell whether anything of ``source`` was read so far."""
    return not source.used().startswith("first 0 ")


def read_before(sources: Iterable[Source], records: Iterable[str]) -> list[str]:
    """Name the files in ``sources`` that begin with what somebody has read.

    Args:
        sources: to look at.
        records: what :meth:`Source.used` said then, among other sentences.

    Raises:
        TopThetaValueError: a file cannot be read.
    """
    beginnings = sorted((int(found[1]), found[2]) for found in map(_BEGINNING.fullmatch, records) if found)
    files = (source for source in sources if isinstance(source, (PlainText, JsonLines)))
    return [file.name for file in files if _begins_with_one(file.path, beginnings)]


def _begins_with_one(path: Path, beginnings: Iterable[tuple[int, str]]) -> bool:
    """Tell whether the first bytes of a file, as many as are named, have the digest named. Fewest bytes come first."""
    digest, read = hashlib.sha256(), 0
    for size, wanted in beginnings:
        while read < size and (content := read_at(path, read, min(CHUNK, size - read))):
            digest.update(content)
            read += len(content)
        if read < size:
            return False
        if digest.hexdigest() == wanted:
            return True
    return False


def _load(path: Path, field: str) -> Any:
    import datasets

    try:
        found = datasets.load_from_disk(str(path))
    # whatever a damaged folder makes datasets and pyarrow raise
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise file_error(path, "a data set that save_to_disk wrote", f"another ({reason})", "save it again") from error
    if not hasattr(found, "column_names") or isinstance(found, dict):
        splits = sorted(found)
        remedy = f"name one of its folders, such as {path / splits[0]}" if splits else "save a split"
        raise file_error(path, "one split", f"the splits {', '.join(splits) or 'none'}", remedy)
    if field not in found.column_names:
        got = f"the columns {', '.join(found.column_names)}"
        raise file_error(path, f"a column {field!r}", got, "name the column with --field")
    return found.select_columns([field]).with_format(None)


def checked_text(where: str, field: str, entry: dict[str, Any]) -> str:
    """Return the text in ``field`` of ``entry``.

    Raises:
        TopThetaTypeError: it is not text.
        TopThetaValueError: there is no such field, or the text has half a surrogate pair.
    """
    if field not in entry:
        got = f"the fields {', '.join(map(str, entry)) or 'none'}"
        raise TopThetaValueError(where, f"a field {field!r}", shown(got)[1:-1], "name the field with --field")
    text = entry[field]
    if not isinstance(text, str):
        raise TopThetaTypeError(where, f"text in field {field!r}", shown(text), "name another field with --field")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"half a surrogate pair at character {error.start}"
        raise TopThetaValueError(where, "Unicode text", got, "correct the text, or leave it out") from error
    return text


def cut(texts: Iterator[str]) -> Iterator[Piece]:
    """Cut a document into pieces of about ``PIECE`` characters, after a line or, where it is too long, before a space.

    A document without anything but white space has none.
    """
    held, blank = "", True
    for text in texts:
        held, start = held + text, 0
        while len(held) - start > PIECE:
            end = _end_of_piece(held, start)
            piece = held[start:end]
            start = end
            blank = blank and piece.isspace()
            if not blank:
                yield Piece(piece, False)
        held = held[start:]
    if not blank or (held and not held.isspace()):
        yield Piece(held, True)


def _end_of_piece(text: str, start: int) -> int:
    middle, end = start + PIECE // 2, start + PIECE
    line, space = text.rfind("\n", middle, end), text.rfind(" ", middle, end)
    return line + 1 if line >= 0 else space if space >= 0 else end
