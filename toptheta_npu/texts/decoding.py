"""Files to text, with the byte that is wrong."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path

from .._files import file_error

#: Bytes that are read at a time.
CHUNK = 2**16


def decoded(path: Path, record: Callable[[bytes], None]) -> Iterator[str]:
    """Yield the text of a file in UTF-8, some at a time. The file is closed in between.

    Args:
        path: the file.
        record: is given all bytes that were read.

    Raises:
        TopThetaValueError: the file cannot be read, or is not text in UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    offset = 0
    while True:
        content = read_at(path, offset)
        record(content)
        kept = decoder.getstate()[0]
        try:
            text = decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            got = f"byte 0x{error.object[error.start]:02x} at offset {offset - len(kept) + error.start}"
            remedy = "leave it out, or convert it: iconv -f latin1 -t utf-8"
            raise file_error(path, "text in UTF-8", got, remedy) from error
        if "\0" in text:
            got = f"a binary one, with a null byte at offset {offset + content.index(0)}"
            raise file_error(path, "a text file", got, "leave it out")
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
    """Tell whether the first bytes have a null byte, as git judges it.

    Raises:
        TopThetaValueError: the file cannot be read.
    """
    return b"\0" in read_at(path, 0, 2**13)
