"""Reads and writes a table as text: the th.txt and sdc.txt files of the paper's authors."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._files import file_error, read_bytes, write_atomically
from ..errors import TopThetaValueError, shortened, shown
from .fit import line_of, theta_of
from .grid import ThresholdGrid
from .kinds import MAX_LENGTH
from .knots import MAX_LENGTH_KNOTS, Floats, Integers, bucket_of, fill_gaps, length_knots
from .lookup import Lookup
from .targets import Target

_KEY = r"L(\d{1,9})_H(\d{1,9}):(\d{1,9}) ([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf)) (\d{1,9})"
# with re.ASCII, since int() and float() take the digits of all scripts
_LINE = re.compile(_KEY + r" (\d{1,9})", re.ASCII | re.IGNORECASE)
_SDC_LINE = re.compile(_KEY, re.ASCII | re.IGNORECASE)
#: Larger files are not read: 4 GiB of lines.
_MAX_FILE_BYTES = 2**32


class Form(NamedTuple):
    """One of the authors' file formats, and its name as an input of ``toptheta convert``."""

    name: str
    as_input: str


def form_of(content: bytes) -> Form | None:
    """Tell which of the authors' formats this is, from its first line.

    Example:
        >>> form_of(b"L0_H0:9 0.5 12 8\\n")
        Form(name='th.txt', as_input='th.txt')
    """
    line = content[:4096].decode("ascii", errors="replace").strip().split("\n")[0].strip()
    if _LINE.fullmatch(line):
        return Form("th.txt", "th.txt")
    return Form("sdc.txt", "th.txt --sdc sdc.txt") if _SDC_LINE.fullmatch(line) else None


def write_text(table: ThresholdGrid, path: str | Path, k: int) -> None:
    """Do the work of ``ThresholdTable.export_text``."""
    targets = table.layer_targets(k)
    lines = [
        f"L{layer}_H{head}:{length} {theta!s} {int(table.counts[layer, head, index])} {targets[layer]}\n"
        for layer, head, index, length, theta in _entries(table, k)
    ]
    write_atomically(path, "".join(lines).encode())


def write_sdc(table: ThresholdGrid, path: str | Path, k: int) -> None:
    """Do the work of ``ThresholdTable.export_sdc_text``."""
    mass = Lookup(table).at(Target(k)).discarded_mass
    if mass is None:
        remedy = "run calibrate_discarded_mass, or add one with with_sdc_text"
        raise TopThetaValueError("discarded_mass", "a table calibrated with it", "None", remedy)
    values = [rows.numpy() for rows in mass]
    lines = [
        f"L{layer}_H{head}:{length} {values[layer][length, head]!s} {int(table.counts[layer, head, index])}\n"
        for layer, head, index, length, _ in _entries(table, k)
    ]
    write_atomically(path, "".join(lines).encode())


def _entries(table: ThresholdGrid, k: int) -> Iterator[tuple[int, int, int, int, np.float32]]:
    """Yield layer, head, index of the length, length and threshold of every row that is not dense."""
    thresholds = Lookup(table, discarded_mass=False).at(Target(k))
    lengths: list[int] = table.lengths.tolist()
    for layer in range(table.num_layers):
        theta = thresholds.theta[layer][table.lengths].numpy()
        for head in range(table.num_heads):
            for index, length in enumerate(lengths):
                if theta[index, head] > -np.inf:
                    yield layer, head, index, length, theta[index, head]


def read_text(path: str | Path, placement: str) -> dict[str, Any]:
    """Read the fields of a table that a th.txt file determines.

    Raises:
        TopThetaValueError: the file is missing, malformed or inconsistent. The message gives the line number.
    """
    lines = _Lines.of(path, "a th.txt file", _LINE, "L<layer>_H<head>:<length> <threshold> <samples> <k>")
    lines.refuse((lines.k < 1) | (lines.k >= lines.length), "1 <= k < length (shorter rows are dense)")
    k_of = dict(zip(lines.layer[::-1].tolist(), lines.k[::-1].tolist(), strict=True))
    lines.refuse(lines.k != [k_of[layer] for layer in lines.layer.tolist()], "one k in each layer: split the file by k")
    layers, heads = 1 + int(lines.layer.max()), 1 + int(lines.head.max())
    there = set(zip(lines.layer.tolist(), lines.head.tolist(), strict=True))
    for layer, head in itertools.product(range(layers), range(heads)):
        if (layer, head) not in there:
            raise file_error(path, f"lines for {layers} layers x {heads} heads", f"none for L{layer}_H{head}")
    present = np.unique(lines.length)
    pooled = len(present) > MAX_LENGTH_KNOTS
    lengths = np.array(length_knots(int(present[-1]), int(present[0])), dtype=np.int64) if pooled else present
    theta, counts, known = lines.pooled((layers, heads), lengths)
    least = np.array([k_of[layer] for layer in range(layers)])
    wanted = np.broadcast_to((lengths > least[:, None])[:, None], known.shape)
    line = fill_gaps(line_of(placement, torch.from_numpy(np.where(known, theta, -np.inf))), known, wanted, lengths)
    values = torch.from_numpy(np.where(known, theta, theta_of(placement, line)).astype(np.float32))[None]
    return {
        "theta": values,
        "k": torch.tensor([least.min()], dtype=torch.int64, device="cpu"),
        "lengths": torch.from_numpy(lengths),
        "counts": torch.from_numpy(counts),
        "std": torch.zeros_like(values),
        "layer_k": tuple(0 if k == least.min() else k for k in least.tolist()),
    }


def read_sdc(path: str | Path, table: ThresholdGrid) -> Tensor:
    """Read the discarded mass for ``table`` from a sdc.txt file: float32 [1, L, Hq, R].

    Raises:
        TopThetaValueError: the table has several k, or the file is missing, malformed or from another table. The
            message gives the line number.
    """
    if len(table.k) != 1:
        remedy = "the file is of one k: export that k as th.txt, and read both files"
        raise TopThetaValueError("table", "a table of one k", shown(table.k.tolist()), remedy)
    lines = _Lines.of(path, "a sdc.txt file", _SDC_LINE, "L<layer>_H<head>:<length> <discarded mass> <samples>")
    layers, heads = table.num_layers, table.num_heads
    lines.refuse((lines.layer >= layers) | (lines.head >= heads), f"{layers} layers x {heads} heads")
    lines.refuse(~((lines.value >= 0) & (lines.value < math.inf)), "a finite mass of at least 0")
    targets = np.array(table.layer_targets(int(table.k[0])))
    lines.refuse(lines.length <= targets[lines.layer], "a length above the k of its layer, up to which rows are dense")
    lengths = table.lengths.numpy()
    mass, _, known = lines.pooled((layers, heads), lengths)
    wanted = table.theta[0].numpy() > -np.inf
    for layer, head in np.argwhere(wanted.any(axis=-1) & ~known.any(axis=-1)).tolist():
        raise file_error(path, "lines for every head that has thresholds", f"none for L{layer}_H{head}")
    filled = fill_gaps(mass, known, wanted, lengths)
    return torch.from_numpy(np.where(wanted, filled, 0.0).astype(np.float32))[None]


@dataclass(frozen=True)
class _Lines:
    """The columns of a file, and its lines with their numbers; ``k`` is 0 if the file has none."""

    path: str | Path
    lines: list[tuple[int, str]]
    layer: Integers
    head: Integers
    length: Integers
    value: Floats
    count: Integers
    k: Integers

    @classmethod
    def of(cls, path: str | Path, what: str, pattern: re.Pattern[str], form: str) -> _Lines:
        """Read a file whose lines have the ``form`` of ``pattern``, and run the checks that both formats share."""
        try:
            text = read_bytes(path, what, _MAX_FILE_BYTES).decode()
        except UnicodeDecodeError as error:
            raise file_error(path, "a text file", str(error)) from error
        lines = [(number, each.strip()) for number, each in enumerate(text.splitlines(), 1) if each.strip()]
        found = [pattern.fullmatch(content) for _, content in lines]
        if not lines or None in found:
            number, content = lines[found.index(None)] if lines else (1, "")
            raise TopThetaValueError(f"{path}, line {number}", form, shortened(repr(content)))
        columns = np.array([[*each.groups(), "0"][:6] for each in found if each is not None]).T
        layer, head, length, count, k = columns[[0, 1, 2, 4, 5]].astype(np.int64)
        read = cls(path, lines, layer, head, length, columns[3].astype(np.float64), count, k)
        too_large = np.isfinite(read.value) & (np.abs(read.value) > np.finfo(np.float32).max)
        spelt_out = np.char.find(np.char.lower(columns[3]), "inf") >= 0
        read.refuse(too_large | (np.isinf(read.value) & ~spelt_out), "a number that float32 holds, or inf")
        read.refuse((length < 1) | (length > MAX_LENGTH), f"a length from 1 to {MAX_LENGTH}")
        _, first = np.unique(np.stack([layer, head, length]), axis=1, return_index=True)
        read.refuse(~np.isin(np.arange(len(lines)), first), "one line for a layer, head and length, got a second one")
        return read

    def refuse(self, wrong: NDArray[np.bool_], expected: str) -> None:
        """Raise a TopThetaValueError that names the first line that is ``wrong``."""
        if wrong.any():
            number, content = self.lines[int(np.argmax(wrong))]
            raise TopThetaValueError(f"{self.path}, line {number}", expected, shortened(repr(content)))

    def pooled(self, size: tuple[int, int], lengths: Integers) -> tuple[Floats, Integers, NDArray[np.bool_]]:
        """Give the mean value, weighted by the counts, the count, and whether there is a line, of the lengths nearest
        to each of ``lengths``: [L, Hq, R] each."""
        shape = (*size, len(lengths))
        bucket = bucket_of(torch.from_numpy(self.length), lengths.tolist()).numpy()
        cell = np.ravel_multi_index((self.layer, self.head, bucket), shape)
        every = int(np.prod(shape))
        lines, counts = (np.bincount(cell, weights, every) for weights in (None, self.count))
        # lines without samples count only where there are no others
        weight = np.where(counts[cell] > 0, self.count, 1.0)
        used = weight > 0
        total = np.bincount(cell[used], (weight * self.value)[used], every)
        mean = total / np.maximum(np.bincount(cell, weight, every), 1.0)
        # a single line keeps its value to the last bit
        alone = lines[cell] == 1
        mean[cell[alone]] = self.value[alone]
        return mean.reshape(shape), counts.astype(np.int64).reshape(shape), (lines > 0).reshape(shape)
