"""Where documents come from: text files, files of JSON lines, and folders of both, read piece by piece."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from .._files import file_error, status
from ..errors import TopThetaTypeError, TopThetaValueError, shown

#: Bytes of a text file that are tokenised at a time, about.
PIECE = 2**17
_JSON_LINES = (".jsonl", ".ndjson")
#: May hold JSON lines or JSON of another form, which is no text.
_JSON = ".json"


class Piece(NamedTuple):
    """A part of a document.

    Attributes:
        text: cut after a line or before a space, where there is one.
        ends: whether the document ends with it.
    """

    text: str
    ends: bool


class Source(Protocol):
    """Some documents.

    Attributes:
        name: without the folder that they lie in.
    """

    name: str

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the documents, one after the other."""


class StoredText:
    """One document that is in memory.

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
    """A text file: one document. It is closed between two pieces.

    Args:
        path: the file; errors name it as it was given.
        name: for the record.

    Raises:
        TopThetaValueError: while it is read: bytes that are not text in UTF-8, or a file that cannot be read.
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
        """Decode the characters that are whole, and count their bytes."""
        try:
            text, used = codecs.utf_8_decode(block, "strict", ends)
        except UnicodeDecodeError as error:
            got = f"byte 0x{block[error.start]:02x} at offset {offset + error.start}"
            remedy = "leave it out, or convert it: iconv -f latin1 -t utf-8"
            raise file_error(self.path, "text in UTF-8", got, remedy) from error
        if "\0" in text:
            raise file_error(self.path, "a text file", "a binary one, with null bytes", "leave it out")
        return text, used


class JsonLines(PlainText):
    """A file of JSON objects, one a line: the texts in one of their fields are the documents.

    Args:
        path, name: as :class:`PlainText`.
        field: of the objects.

    Raises:
        TopThetaTypeError: the field is not text; the message has file and line.
        TopThetaValueError: as :class:`PlainText`; or a line is not a JSON object with this field.
    """

    def __init__(self, path: Path, name: str, field: str = "text") -> None:
        super().__init__(path, name)
        self._field = field

    def pieces(self) -> Iterator[Piece]:
        """Yield the documents. Leave out lines without anything."""
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
        return text


@dataclass
class Sources:
    """What was found.

    Attributes:
        sources: in the order in which they were named; the files of a folder by their paths.
        left_out: files of folders that hold null bytes, nothing at all, or JSON.
    """

    sources: list[Source] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)


def find_sources(paths: Sequence[Path], field: str = "text") -> Sources:
    """Find the sources behind ``paths``: text files, files of JSON lines, and folders of both.

    Files with names ending in .jsonl or .ndjson are JSON lines, every other file is plain text. Of a folder hidden,
    empty and binary files and those ending in .json are left out, and linked folders are not entered.

    Args:
        paths: files and folders.
        field: of JSON lines.

    Raises:
        TopThetaValueError: a path leads nowhere, a file is empty or ends in .json, or a folder holds no text.

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
        elif not where.st_size:
            raise file_error(path, "a file with text", "an empty one", "leave it out")
        else:
            found.sources.append(_source(path, path.name, field))
    return found


def _add_folder(found: Sources, folder: Path, field: str) -> None:
    before, name = len(found.sources), folder.name or folder.resolve().name
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if not file.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        beginning = _read(file, 0)
        if file.suffix.lower() == _JSON or not beginning or b"\0" in beginning:
            found.left_out.append(file)
        else:
            found.sources.append(_source(file, f"{name}/{inside.as_posix()}", field))
    if len(found.sources) == before:
        got = "one without any" + (", only binary, empty or JSON ones" if found.left_out else "")
        raise file_error(folder, "a folder with text files", got, "name another folder, or its files one by one")


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
    """Cut a text after its last line or, if it is all one line, before its last space."""
    line, space = text.rfind("\n") + 1, text.rfind(" ")
    return text[: line or (space if space > 0 else len(text))]
