"""Reads the authors' files line by line, and refuses a line by its number."""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._files import file_error, read_bytes
from ..errors import TopThetaValueError, shortened
from .kinds import MAX_LENGTH

CSV_HEADER = "layer,head,seq_len,threshold"
_FORM = "L<layer>_H<head>:<length> <threshold> <samples> <k>"
_SDC_FORM = "L<layer>_H<head>:<length> <discarded mass> <samples>"
_CSV_FORM = "<layer>,<head>,<length>,<threshold>"
_KEY = r"L(?P<layer>\d{1,9})_H(?P<head>\d{1,9}):(?P<length>\d{1,9}) (?P<value>\S+) (?P<count>\d{1,9})"
# with re.ASCII, since int() and float() take the digits of all scripts
_LINE = re.compile(_KEY + r" (?P<k>\d{1,9})", re.ASCII)
_SDC_LINE = re.compile(_KEY, re.ASCII)
_CSV_LINE = re.compile(r"(?P<layer>\d{1,9}),(?P<head>\d{1,9}),(?P<length>\d{1,9}),(?P<value>[^\s,]+)", re.ASCII)
_DIGITS = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
_NO_DIGITS = re.compile(r"[-+]?(inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_LARGEST = float(np.finfo(np.float32).max)
_GZIP = b"\x1f\x8b"
_LONGEST_LINE = 2**12
#: Larger files are not read: 4 GiB of lines.
_MAX_FILE_BYTES = 2**32


@dataclass(frozen=True)
class Line:
    """Hold what a file says about one layer, head and row length."""

    number: int
    value: float
    count: int
    k: int


class Form(NamedTuple):
    """Name one of the authors' files, and what ``toptheta convert`` takes it as."""

    name: str
    as_input: str


#: (layer, head) -> row length -> what the file says about it.
Lines = dict[tuple[int, int], dict[int, Line]]


def form_of(content: bytes) -> Form | None:
    """Tell which of the authors' files this is, as far as its first line shows.

    Example:
        >>> form_of(b"L0_H0:9 0.5 12 8\\n")
        Form(name='th.txt', as_input='th.txt')
    """
    start = content[:_LONGEST_LINE]
    if start.startswith(_GZIP):
        try:
            start = zlib.decompressobj(wbits=31).decompress(start, _LONGEST_LINE)
        except zlib.error:
            return None
    line = start.decode("ascii", errors="replace").strip().split("\n")[0].strip()
    if _LINE.fullmatch(line):
        return Form("th.txt", "th.txt")
    if _SDC_LINE.fullmatch(line):
        return Form("sdc.txt", "th.txt --sdc sdc.txt")
    return Form("csv", "th.csv.gz --k K") if line == CSV_HEADER else None


def parse_text(path: str | Path) -> Lines:
    """Read the lines of a th.txt file: thresholds, and one k per layer."""
    layer_k: dict[int, int] = {}

    def check(where: str, layer: int, head: int, length: int, line: Line) -> None:
        _check_threshold(where, length, line)
        if layer_k.setdefault(layer, line.k) != line.k:
            got = f"{layer_k[layer]} and {line.k}"
            raise TopThetaValueError(where, f"one k in layer {layer}", got, "split the file by k")

    return _parse(path, _numbered(_text(path, "a th.txt file")), _LINE, _FORM, check)


def parse_csv(path: str | Path, k: int, layer_k: Mapping[int, int]) -> Lines:
    """Read the lines of a csv file, gzipped or not, of one ``k``; each counts as one calibration row."""
    lines = _numbered(_text(path, "a csv file"))
    number, header = next(lines, (1, ""))
    if header != CSV_HEADER:
        raise TopThetaValueError(f"{path}, line {number}", f"the header {CSV_HEADER}", shortened(repr(header)))

    def check(where: str, layer: int, head: int, length: int, line: Line) -> None:
        _check_threshold(where, length, replace(line, k=max(k, layer_k.get(layer, 0))))

    return _parse(path, lines, _CSV_LINE, _CSV_FORM, check)


def parse_sdc(path: str | Path, targets: Sequence[int], heads: int) -> Lines:
    """Read the lines of a sdc.txt file, for a table of one k with these ``targets`` per layer and ``heads`` in each."""

    def check(where: str, layer: int, head: int, length: int, line: Line) -> None:
        if layer >= len(targets) or head >= heads:
            got = f"L{layer}_H{head}"
            raise TopThetaValueError(where, f"{len(targets)} layers x {heads} heads", got)
        if not 0 <= line.value < math.inf:
            raise TopThetaValueError(where, "a finite mass of at least 0", str(line.value), "calibrate again")
        if length <= targets[layer]:
            expected = f"a length above {targets[layer]}, up to which rows of layer {layer} are dense"
            raise TopThetaValueError(where, expected, str(length), "give the sdc.txt of these thresholds")

    return _parse(path, _numbered(_text(path, "a sdc.txt file")), _SDC_LINE, _SDC_FORM, check)


def _check_threshold(where: str, length: int, line: Line) -> None:
    if math.isnan(line.value):
        raise TopThetaValueError(where, "a number as threshold", "NaN", "calibrate again")
    if not 1 <= line.k < length:
        expected = "1 <= k < length (shorter rows are dense)"
        raise TopThetaValueError(where, expected, f"k={line.k}, length={length}")


def _parse(
    path: str | Path,
    numbered: Iterator[tuple[int, str]],
    pattern: re.Pattern[str],
    form: str,
    check: Callable[[str, int, int, int, Line], None],
) -> Lines:
    lines: Lines = {}
    for number, content in numbered:
        where = f"{path}, line {number}"
        layer, head, length, line = _parse_line(where, number, content, pattern, form)
        check(where, layer, head, length, line)
        head_lines = lines.setdefault((layer, head), {})
        if length in head_lines:
            got = f"a second one (the first is line {head_lines[length].number})"
            remedy = "a file appended to by several runs: keep one of them"
            raise TopThetaValueError(where, f"one line for L{layer}_H{head}:{length}", got, remedy)
        head_lines[length] = line
    if not lines:
        raise file_error(path, f"lines of the form {form}", "none")
    return lines


def _parse_line(
    where: str, number: int, content: str, pattern: re.Pattern[str], form: str
) -> tuple[int, int, int, Line]:
    match = pattern.fullmatch(content)
    if match is None:
        raise TopThetaValueError(where, form, shortened(repr(content)))
    found = match.groupdict()
    length = int(found["length"])
    value = _number(where, found["value"])
    if not 1 <= length <= MAX_LENGTH:
        raise TopThetaValueError(where, f"a length from 1 to {MAX_LENGTH}", str(length))
    line = Line(number, value, int(found.get("count", 1)), int(found.get("k", 0)))
    return int(found["layer"]), int(found["head"]), length, line


def _number(where: str, text: str) -> float:
    """Read a threshold or a mass. It is infinite only where the file says so."""
    if _NO_DIGITS.fullmatch(text):
        return float(text)
    if not _DIGITS.fullmatch(text):
        remedy = "write it in the digits 0 to 9"
        raise TopThetaValueError(where, "a number as threshold", shortened(text), remedy)
    value = float(text)
    if abs(value) > _LARGEST:
        expected = f"a number up to {_LARGEST:.4g}, as float32 holds it"
        raise TopThetaValueError(where, expected, shortened(text), "write inf or -inf if that is meant")
    return value


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers."""
    return ((number, content.strip()) for number, content in enumerate(text.splitlines(), start=1) if content.strip())


def _text(path: str | Path, what: str) -> str:
    content = read_bytes(path, what, _MAX_FILE_BYTES)
    try:
        if content.startswith(_GZIP):
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise file_error(path, f"{what} of at most {_MAX_FILE_BYTES} bytes", "more when unpacked")
        return content.decode()
    except (OSError, EOFError, zlib.error) as error:
        raise file_error(path, "a gzip file", f"a damaged one ({error})", "get a fresh copy") from error
    except UnicodeDecodeError as error:
        raise file_error(path, "a text file", str(error)) from error
