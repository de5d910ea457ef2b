"""Recognises files that are not UTF-8 text by their first bytes, and says how to convert them."""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """A file format that is not read as text.

    Attributes:
        name: a noun, for the error messages.
        remedy: how to get text in UTF-8; empty if that is not possible.
    """

    name: str
    remedy: str = ""

    @property
    def one(self) -> str:
        """The name with its article."""
        return f"{'an' if self.name[0] in 'Aaex' else 'a'} {self.name}"


BINARY = Format("binary file")
_UTF_16 = Format("UTF-16 file", "convert it: iconv -f utf-16 -t utf-8")
_CONVERTED = "convert it to JSON lines, which have an object a line"
# UTF-32's little-endian mark begins with UTF-16's mark
_BY_BEGINNING = (
    (b"\xff\xfe\0\0", Format("UTF-32 file", "convert it: iconv -f utf-32 -t utf-8")),
    (b"\0\0\xfe\xff", Format("UTF-32 file", "convert it: iconv -f utf-32 -t utf-8")),
    (b"\xff\xfe", _UTF_16),
    (b"\xfe\xff", _UTF_16),
    (b"\x1f\x8b", Format("gzip file", "unpack it: gunzip -k")),
    (b"PK\3\4", Format("zip file", "unpack it: unzip; from a document, save its text")),
    (b"\xfd7zXZ\0", Format("xz file", "unpack it: unxz -k")),
    (b"\x28\xb5\x2f\xfd", Format("zstd file", "unpack it: unzstd")),
    (b"7z\xbc\xaf\x27\x1c", Format("7z file", "unpack it: 7z x")),
    (b"%PDF-", Format("PDF file", "extract its text: pdftotext")),
    (b"PAR1\x15", Format("Parquet file", _CONVERTED)),
    (b"ARROW1\0\0", Format("Arrow file", _CONVERTED)),
)
_BZIP2 = Format("bzip2 file", "unpack it: bunzip2 -k")
#: Number of bytes to examine for UTF-16 without a mark.
_LOOKED_AT = 64


def foreign_format(beginning: bytes) -> Format | None:
    """Recognise the format of a file that is not UTF-8 text. Return None if it may be such text.

    Args:
        beginning: first bytes of the file; more bytes give a surer answer.

    Example:
        >>> foreign_format("text".encode("utf-16")).name, foreign_format(b"text")
        ('UTF-16 file', None)
    """
    for mark, found in _BY_BEGINNING:
        if beginning.startswith(mark):
            return found
    if beginning.startswith(b"BZh") and beginning[4:10] == b"1AY&SY":
        return _BZIP2
    return _with_null_bytes(beginning) if b"\0" in beginning else None


def _with_null_bytes(beginning: bytes) -> Format:
    """Find UTF-16 without a mark, in which every other byte of Latin letters is null."""
    looked_at = beginning[:_LOOKED_AT]
    halves = looked_at[0::2], looked_at[1::2]
    for order, (zeros, others) in (("be", halves), ("le", halves[::-1])):
        if zeros and others and not any(zeros) and all(others):
            return Format("UTF-16 file", f"convert it: iconv -f utf-16{order} -t utf-8")
    return BINARY
