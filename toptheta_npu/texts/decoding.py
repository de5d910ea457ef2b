"""Files to text, with the byte that is wrong."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path

from .._files import file_error
from ..errors import TopThetaValueError

#: Bytes that are read at a time.
CHUNK = 2**16
#: Codecs for names and literals; no file of text is written in one.
_OF_STRINGS = ("idna", "punycode", "unicode-escape", "raw-unicode-escape")
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def check_encoding(encoding: str) -> str:
    """Check that ``encoding`` is one of text. Return its own name.

    Raises:
        TopThetaValueError: Python knows no such encoding of text.

    Example:
        >>> check_encoding("Latin-1")
        'iso8859-1'
    """
    try:
        found = codecs.lookup(encoding)
        "a".encode(encoding)  # refuses codecs such as base64, which are none of text
        if found.name in _OF_STRINGS:
            raise LookupError(encoding)
    except (LookupError, ValueError) as error:
        remedy = "such as utf-8, utf-16, latin-1 or cp1252"
        raise TopThetaValueError("--encoding", "an encoding of text", repr(encoding), remedy) from error
    return found.name


def decoded(path: Path, encoding: str, record: Callable[[bytes], None]) -> Iterator[str]:
    """Yield the text of a file, some at a time. The file is closed in between.

    Args:
        path: the file.
        encoding: as Python names it.
        record: is given all bytes that were read.

    Raises:
        TopThetaValueError: the file cannot be read, or is not text in ``encoding``.
    """
    name = check_encoding(encoding)
    wide = name.startswith(("utf-16", "utf-32"))
    decoder = codecs.getincrementaldecoder("utf-8-sig" if name == "utf-8" else encoding)()
    offset = 0
    while True:
        content = read_at(path, offset)
        if not offset and not wide:
            _refuse_mark(path, content, encoding)
        record(content)
        kept = decoder.getstate()[0]
        try:
            text = decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            place = offset - len(kept) + error.start
            raise _not_text(path, encoding, error.object[error.start : error.start + 1], place, content) from error
        except UnicodeError as error:  # utf-16 and utf-32 want a mark
            remedy = f"add --encoding {encoding}-le or {encoding}-be, or leave the option out"
            raise file_error(path, f"the byte order mark of {encoding}", "none at offset 0", remedy) from error
        if "\0" in text:
            at = f" at offset {offset + content.index(0)}" if not wide else ""
            remedy = "leave it out; text in UTF-16 needs --encoding utf-16-le or utf-16-be"
            raise file_error(path, "a text file", f"a binary one, with a null byte{at}", remedy)
        if text:
            yield text
        if not content:
            return
        offset += len(content)


def read_at(path: Path, offset: int, size: int = CHUNK) -> bytes:
    """Read up to ``size`` bytes of a file from ``offset`` on.

    Raises:
        TopThetaValueError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        got = f"one that cannot be read ({error.strerror or error})"
        raise file_error(path, "a text file", got, "correct its permissions, or leave it out") from error


def is_binary(path: Path) -> bool:
    """Tell whether the first bytes have a null byte and no byte order mark, as git judges it.

    Raises:
        TopThetaValueError: the file cannot be read.
    """
    start = read_at(path, 0, 2**13)
    return b"\0" in start and not start.startswith(tuple(mark for mark, _ in _MARKS))


def _refuse_mark(path: Path, content: bytes, encoding: str) -> None:
    for mark, name in _MARKS:
        if content.startswith(mark):
            got = f"the byte order mark of {name} at offset 0"
            raise file_error(path, f"text in {encoding}", got, f"add --encoding {name}")


def _not_text(path: Path, encoding: str, byte: bytes, place: int, content: bytes) -> TopThetaValueError:
    if b"\0" in content:
        got = f"a binary file (byte 0x{byte.hex()} at offset {place}, and null bytes)"
        return file_error(path, f"text in {encoding}", got, "leave it out")
    got = f"byte 0x{byte.hex()} at offset {place}" if byte else f"an end within a character at offset {place}"
    others = [name for name in ("utf-8", "latin-1", "cp1252") if name != encoding][:2]
    return file_error(path, f"text in {encoding}", got, f"name its encoding, such as --encoding {' or '.join(others)}")
