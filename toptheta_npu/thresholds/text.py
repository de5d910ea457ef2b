"""Text forms of a table: the th.txt and csv files of the paper's authors."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._files import file_error, read_bytes, write_atomically
from ..errors import TopThetaValueError
from .checks import MAX_LENGTH
from .fit import line_of, theta_of
from .knots import (
    MAX_LENGTH_KNOTS,
    Integers,
    bucket_of,
    fill_gaps,
    length_knots,
)

if TYPE_CHECKING:
    from .table import ThresholdTable

_LINE = re.compile(r"L(\d{1,9})_H(\d{1,9}):(\d{1,9}) (\S+) (\d{1,9}) (\d{1,9})")
#: Larger files are not read: 4 GiB of lines.
_MAX_FILE_BYTES = 2**32
_FORM = "L<layer>_H<head>:<length> <threshold> <samples> <k>"


@dataclass(frozen=True)
class _Line:
    number: int
    theta: float
    count: int
    k: int


#: (layer, head) -> row length -> what the file says about it.
_Lines = dict[tuple[int, int], dict[int, _Line]]


def write_text(table: ThresholdTable, path: str | Path, k: int) -> None:
    """The work of ``ThresholdTable.export_text``."""
    targets = table.layer_targets(k)
    lines = [
        f"L{layer}_H{head}:{length} {theta!s} {int(table.counts[layer, head, index])} {targets[layer]}\n"
        for layer, head, index, length, theta in _entries(table, k)
    ]
    write_atomically(path, "".join(lines).encode())


def write_csv(table: ThresholdTable, path: str | Path, k: int) -> None:
    """The work of ``ThresholdTable.export_csv``."""
    lines = ["layer,head,seq_len,threshold\n"]
    lines += [f"{layer},{head},{length},{theta!s}\n" for layer, head, _, length, theta in _entries(table, k)]
    # Without a time stamp the same table gives the same bytes.
    write_atomically(path, gzip.compress("".join(lines).encode(), mtime=0))


def read_text(path: str | Path, placement: str) -> dict[str, Any]:
    """The fields of a table that a th.txt file determines.

    Raises:
        TopThetaValueError: the file is missing, malformed, or inconsistent; with the line number.
    """
    lines = _parse(path)
    heads = _check_grid(path, lines)
    layer_ks = [next(iter(lines[layer, 0].values())).k for layer in range(len(lines) // heads)]
    lowest = min(layer_ks)
    layer_k = tuple(0 if k == lowest else k for k in layer_ks)
    lengths = _knots_for(lines)
    theta = np.full((len(layer_ks), heads, len(lengths)), -np.inf)
    counts = np.zeros(theta.shape, dtype=np.int64)
    known = np.zeros(theta.shape, dtype=np.bool_)
    for (layer, head), entries in lines.items():
        _pool(entries, lengths, theta[layer, head], counts[layer, head], known[layer, head])
    wanted = np.array([[lengths > max(lowest, k)] * heads for k in layer_k])
    line = fill_gaps(line_of(placement, torch.from_numpy(theta)), known, wanted, lengths)
    values = np.where(known, theta, theta_of(placement, line))
    tensor = torch.from_numpy(values.astype(np.float32))[None]
    return {
        "theta": tensor,
        "k": torch.tensor([lowest]),
        "lengths": torch.from_numpy(lengths),
        "counts": torch.from_numpy(counts),
        "std": torch.zeros_like(tensor),
        "layer_k": layer_k,
    }


def _entries(table: ThresholdTable, k: int) -> Iterator[tuple[int, int, int, int, np.float32]]:
    """Layer, head, index of the length, length and threshold of every row that is not dense."""
    thresholds = table.at(k)
    lengths: list[int] = table.lengths.tolist()
    for layer in range(table.num_layers):
        theta = thresholds.theta[layer][table.lengths].numpy()
        for head in range(table.num_heads):
            for index, length in enumerate(lengths):
                if theta[index, head] > -np.inf:
                    yield layer, head, index, length, theta[index, head]


def _parse(path: str | Path) -> _Lines:
    lines: _Lines = {}
    layer_k: dict[int, int] = {}
    try:
        text = read_bytes(path, "a th.txt file", _MAX_FILE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise file_error(path, "a text file", str(error)) from error
    for number, content in enumerate(text.splitlines(), start=1):
        if not content.strip():
            continue
        where = f"{path}, line {number}"
        layer, head, length, line = _parse_line(where, number, content)
        if layer_k.setdefault(layer, line.k) != line.k:
            got = f"{layer_k[layer]} and {line.k}"
            raise TopThetaValueError(where, f"one k in layer {layer}", got, "split the file by k")
        head_lines = lines.setdefault((layer, head), {})
        if length in head_lines:
            got = f"a second one (the first is line {head_lines[length].number})"
            remedy = "a file appended to by several runs: keep one of them"
            raise TopThetaValueError(where, f"one line for L{layer}_H{head}:{length}", got, remedy)
        head_lines[length] = line
    return lines


def _parse_line(where: str, number: int, content: str) -> tuple[int, int, int, _Line]:
    match = _LINE.fullmatch(content.strip())
    if match is None:
        raise TopThetaValueError(where, _FORM, repr(content))
    layer, head, length, count, k = (int(match[group]) for group in (1, 2, 3, 5, 6))
    try:
        theta = float(match[4])
    except ValueError:
        raise TopThetaValueError(where, "a number as threshold", match[4]) from None
    if math.isnan(theta):
        raise TopThetaValueError(where, "a number as threshold", "NaN", "calibrate again")
    if length > MAX_LENGTH:
        raise TopThetaValueError(where, f"a length up to {MAX_LENGTH}", str(length))
    if not 1 <= k < length:
        raise TopThetaValueError(where, "1 <= k < length (shorter rows are dense)", f"k={k}, length={length}")
    return layer, head, length, _Line(number, theta, count, k)


def _check_grid(path: str | Path, lines: _Lines) -> int:
    if not lines:
        raise file_error(path, f"lines of the form {_FORM}", "none")
    layers = 1 + max(layer for layer, _ in lines)
    heads = 1 + max(head for _, head in lines)
    for layer in range(layers):
        for head in range(heads):
            if (layer, head) not in lines:
                raise file_error(path, f"lines for {layers} layers x {heads} heads", f"none for L{layer}_H{head}")
    return heads


def _knots_for(lines: _Lines) -> Integers:
    present = sorted({length for entries in lines.values() for length in entries})
    if len(present) > MAX_LENGTH_KNOTS:
        present = length_knots(present[-1], present[0])
    return np.array(present, dtype=np.int64)


def _pool(entries: dict[int, _Line], lengths: Integers, theta: np.ndarray, counts: Integers, known: np.ndarray) -> None:
    """Writes the mean threshold of each knot's bucket, weighted by the counts, into the rows given."""
    buckets = bucket_of(torch.tensor(list(entries)), lengths.tolist()).numpy()
    values = np.array([line.theta for line in entries.values()])
    samples = np.array([line.count for line in entries.values()], dtype=np.int64)
    for bucket in np.unique(buckets):
        inside = buckets == bucket
        weights = samples[inside] if samples[inside].any() else None
        single = inside.sum() == 1
        theta[bucket] = values[inside][0] if single else np.average(values[inside], weights=weights)
        counts[bucket] = samples[inside].sum()
        known[bucket] = True
