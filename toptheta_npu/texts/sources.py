"""Reads documents piece by piece from text files, files of JSON lines, and folders of both."""

from __future__ import annotations

import codecs
import json
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from .._files import file_error, status
from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .formats import BINARY, Format, foreign_format

#: About how many bytes of a text file to tokenise at a time.
PIECE = 2**17
_JSON_LINES = (".jsonl", ".ndjson")
#: May hold JSON lines, or JSON of another form, which is not text.
_JSON = ".json"
#: Files in a folder that are not texts.
_EMPTY, _OTHER_JSON = Format("empty file"), Format(".json file", "name it .jsonl if it has an object a line")
_LINKED, _BROKEN, _SPECIAL = Format("linked folder", "name it too"), Format("broken link"), Format("special file")


class Piece(NamedTuple):
    """A part of a document.

    Attributes:
        text: the text, cut after a line or before a space if it has one.
        ends: whether the document ends with this piece.
    """

    text: str
    ends: bool


class Source(Protocol):
    """Some documents.

    Attributes:
        name: name without the folder.
    """

    name: str

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the documents, one after the other."""


class StoredText:
    """One document in memory.

    Example:
        >>> list(StoredText("greeting", "hello world").pieces())
        [Piece(text='hello world', ends=True)]
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text

    def pieces(self) -> Iterator[Piece]:
        """Yield the document."""
        yield Piece(self._text, True)


class PlainText:
    """A text file: one document. The file is closed between two pieces.

    Args:
        path: the file; errors name it as given.
        name: name to record.

    Raises:
        TopThetaValueError: during reading: bytes that are not UTF-8 text, or a file that cannot be read.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name

    def pieces(self) -> Iterator[Piece]:
        """Yield the document in pieces."""
        offset, ends = 0, False
        while not ends:
            block = _read(self.path, offset)
            ends = len(block) < PIECE
            text, used = self._decoded(block, offset, ends)
            if not ends:
                text = _up_to_a_break(text)
                used = len(text.encode())
            yield Piece(text.removeprefix("\ufeff") if offset == 0 else text, ends)
            offset += used

    def _decoded(self, block: bytes, offset: int, ends: bool) -> tuple[str, int]:
        """Decode the complete characters, and count their bytes."""
        found = foreign_format(block) if offset == 0 else BINARY if b"\0" in block else None
        if found is not None:
            got = "a binary file, with null bytes" if found is BINARY else found.one
            raise file_error(self.path, "text in UTF-8", got, found.remedy or "leave it out")
        try:
            return codecs.utf_8_decode(block, "strict", ends)
        except UnicodeDecodeError as error:
            got = f"byte 0x{block[error.start]:02x} at offset {offset + error.start}"
            remedy = "leave it out, or convert it from its encoding; for latin1: iconv -f latin1 -t utf-8"
            raise file_error(self.path, "text in UTF-8", got, remedy) from error


class JsonLines(PlainText):
    """A file of JSON objects, one per line: the texts in one of their fields are the documents.

    Args:
        path, name: as :class:`PlainText`.
        field: field of the objects that holds the text.

    Raises:
        TopThetaTypeError: the field is not text; the message gives file and line.
        TopThetaValueError: as :class:`PlainText`; or a line is not a JSON object with this field.
    """

    def __init__(self, path: Path, name: str, field: str = "text") -> None:
        super().__init__(path, name)
        self._field = field

    def pieces(self) -> Iterator[Piece]:
        """Yield the documents. Skip empty lines."""
        for number, line in enumerate(self._lines(), start=1):
            if line.strip():
                yield Piece(self._text_of(f"{self.path}:{number}", line), True)

    def _lines(self) -> Iterator[str]:
        held: list[str] = []
        for piece in super().pieces():
            first, *others = piece.text.split("\n")
            held.append(first)
            if others:
                yield "".join(held)
                yield from others[:-1]
                held = [others[-1]]
        yield "".join(held)

    def _text_of(self, where: str, line: str) -> str:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TopThetaValueError(where, "a JSON object", shown(line.strip()), "correct the line") from error
        if not isinstance(entry, dict) or self._field not in entry:
            got = shown(list(entry) if isinstance(entry, dict) else entry)
            expected = f"a JSON object with a field {self._field!r}"
            raise TopThetaValueError(where, expected, got, "name the field with --field")
        text = entry[self._field]
        if not isinstance(text, str):
            remedy = "name another field with --field"
            raise TopThetaTypeError(where, f"text in field {self._field!r}", shown(text), remedy)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            lone = f"half a surrogate pair, \\u{ord(text[error.start]):04x}"
            raise TopThetaValueError(where, "whole characters of Unicode", lone, "correct the line") from error
        return text


class LeftOut(NamedTuple):
    """An entry of a folder that is not read.

    Attributes:
        path: path of a file, or of a link to a folder.
        what: a noun for it, with a remedy that makes it readable, or an empty one.
    """

    path: Path
    what: Format


@dataclass
class Sources:
    """The result of `find_sources`.

    Attributes:
        sources: the sources in the order given; the files of a folder are sorted by path.
        left_out: entries of folders that are not read, sorted by path.
    """

    sources: list[Source] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Name the skipped entries in one sentence; empty if none was skipped."""
        return [f"Left out: {self._all_left_out()}."] if self.left_out else []

    def aside(self) -> str:
        """Name the skipped entries as an addition to an error about the texts."""
        return f" (left out: {self._all_left_out()})" if self.left_out else ""

    def _all_left_out(self) -> str:
        counts = Counter(what for _, what in self.left_out)
        first = {what: path for path, what in reversed(self.left_out)}
        return "; ".join(
            f"{count} {what.name}{'s' * (count > 1)}, such as {first[what]}" + (what.remedy and f" ({what.remedy})")
            for what, count in counts.items()
        )


def find_sources(paths: Sequence[Path], field: str = "text") -> Sources:
    """Find the sources behind ``paths``: text files, files of JSON lines, and folders of both.

    Files whose names end in .jsonl or .ndjson are JSON lines; every other file is plain text. Hidden files of a folder
    are skipped silently. Empty, binary, compressed, UTF-16 and .json files and linked folders in it are skipped, too,
    and listed in ``left_out``.

    Args:
        paths: files and folders.
        field: field of JSON lines that holds the text.

    Raises:
        TopThetaValueError: a path does not exist, a file is empty or ends in .json, or a folder holds no text.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("one"), (folder / "b.txt").write_text("two")
        >>> [source.name for source in find_sources([folder / "b.txt", folder / "a.txt"]).sources]
        ['b.txt', 'a.txt']
    """
    found = Sources()
    for path in paths:
        what = "a file or folder with text"
        where = status(path, what)
        if where is None:
            raise file_error(path, what, "no such file", "correct the path")
        if path.is_dir():
            _add_folder(found, path, field)
        elif path.suffix.lower() == _JSON:
            remedy = "name it .jsonl if it has an object a line, or .txt to read it as it is"
            raise file_error(path, "text or JSON lines", "a .json file", remedy)
        elif not stat.S_ISREG(where.st_mode):  # of size 0, and it could be read only once
            remedy = "write its output to a file, and name that"
            raise file_error(path, what, "a pipe or device", remedy)
        elif not where.st_size:
            raise file_error(path, "a file with text", "an empty one", "leave it out")
        else:
            found.sources.append(_source(path, path.name, field))
    return found


def _add_folder(found: Sources, folder: Path, field: str) -> None:
    there, name = Sources(), folder.name or folder.resolve().name
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or (file.is_dir() and not file.is_symlink()):
            continue
        if (reason := _unread(file)) is not None:
            there.left_out.append(LeftOut(file, reason))
        else:
            there.sources.append(_source(file, f"{name}/{inside.as_posix()}", field))
    if not there.sources:
        remedy = "name another folder, or its files one by one"
        raise file_error(folder, "a folder with text files", f"one without any{there.aside()}", remedy)
    found.sources += there.sources
    found.left_out += there.left_out


def _unread(file: Path) -> Format | None:
    """Tell why a file of a folder is not read as text. Return None for one that is."""
    if file.is_dir():
        return _LINKED
    if not file.is_file():
        return _BROKEN if file.is_symlink() else _SPECIAL
    if file.suffix.lower() == _JSON:
        return _OTHER_JSON
    beginning = _read(file, 0)
    return foreign_format(beginning) if beginning else _EMPTY


def _source(file: Path, name: str, field: str) -> Source:
    return JsonLines(file, name, field) if file.suffix.lower() in _JSON_LINES else PlainText(file, name)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PIECE)
    except OSError as error:
        got = f"one that cannot be read ({error.strerror or error})"
        raise file_error(path, "a text file", got, "correct its permissions, or leave it out") from error


def _up_to_a_break(text: str) -> str:
    """Cut a text after its last line or, if it is a single line, before its last space."""
    line, space = text.rfind("\n") + 1, text.rfind(" ")
    return text[: line or (space if space > 0 else len(text))]
