"""Reads and writes a table as text: the th.txt, sdc.txt and csv files of the paper's authors."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._files import file_error, write_atomically
from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .fit import line_of, theta_of
from .grid import ThresholdGrid
from .kinds import MAX_LENGTH
from .knots import (
    MAX_LENGTH_KNOTS,
    Integers,
    bucket_of,
    fill_gaps,
    length_knots,
)
from .lookup import Lookup
from .targets import Target
from .text_lines import CSV_HEADER, Line, Lines, parse_csv, parse_sdc, parse_text


def write_text(table: ThresholdGrid, path: str | Path, k: int) -> None:
    """Do the work of ``ThresholdTable.export_text``."""
    targets = table.layer_targets(k)
    lines = [
        f"L{layer}_H{head}:{length} {theta!s} {int(table.counts[layer, head, index])} {targets[layer]}\n"
        for layer, head, index, length, theta in _entries(table, k)
    ]
    write_atomically(path, "".join(lines).encode())


def write_csv(table: ThresholdGrid, path: str | Path, k: int) -> None:
    """Do the work of ``ThresholdTable.export_csv``."""
    lines = [CSV_HEADER + "\n"]
    lines += [f"{layer},{head},{length},{theta!s}\n" for layer, head, _, length, theta in _entries(table, k)]
    # Without a time stamp the same table gives the same bytes.
    write_atomically(path, gzip.compress("".join(lines).encode(), mtime=0))


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


def read_text(path: str | Path, placement: str) -> dict[str, Any]:
    """Read the fields of a table that a th.txt file determines.

    Raises:
        TopThetaValueError: the file is missing, malformed, or inconsistent; with the line number.
    """
    lines = parse_text(path)
    _check_grid(path, lines)
    layers = 1 + max(layer for layer, _ in lines)
    layer_ks = [next(iter(lines[layer, 0].values())).k for layer in range(layers)]
    lowest = min(layer_ks)
    return _fields(lines, placement, lowest, tuple(0 if k == lowest else k for k in layer_ks))


def read_csv(
    path: str | Path, placement: str, k: int, layer_k: Sequence[int] | Mapping[int, int] | None
) -> dict[str, Any]:
    """Read the fields of a table that a csv file and its ``k`` determine.

    Raises:
        TopThetaTypeError, TopThetaValueError: ``k`` or ``layer_k`` is unusable.
        TopThetaValueError: the file is missing, malformed, or inconsistent; with the line number.
    """
    if type(k) is not int:
        raise TopThetaTypeError("k", "an int", shown(k))
    if not 1 <= k <= MAX_LENGTH:
        raise TopThetaValueError("k", f"1 to {MAX_LENGTH}", shown(k))
    least = _least_by_layer(layer_k)
    lines = parse_csv(path, k, least)
    _check_grid(path, lines)
    layers = 1 + max(layer for layer, _ in lines)
    if isinstance(layer_k, (list, tuple)) and len(layer_k) != layers:
        raise TopThetaValueError("layer_k", f"{layers} numbers, one per layer of {path}", str(len(layer_k)))
    if beyond := [layer for layer in least if layer >= layers]:
        raise TopThetaValueError("layer_k", f"layers 0 to {layers - 1}, which {path} has", f"layer {shown(beyond[0])}")
    return _fields(lines, placement, k, tuple(least.get(layer, 0) for layer in range(layers)))


def _least_by_layer(layer_k: Sequence[int] | Mapping[int, int] | None) -> dict[int, int]:
    if layer_k is None:
        return {}
    if not isinstance(layer_k, (list, tuple, Mapping)):
        raise TopThetaTypeError("layer_k", "a list or tuple of ints, or a mapping of layers to ints", shown(layer_k))
    least = dict(layer_k) if isinstance(layer_k, Mapping) else dict(enumerate(layer_k))
    for layer, k in least.items():
        if type(layer) is not int or type(k) is not int:
            raise TopThetaTypeError("layer_k", "ints", f"{shown(layer)}: {shown(k)}")
        if layer < 0 or not 0 <= k <= MAX_LENGTH:
            raise TopThetaValueError(
                "layer_k", f"layers from 0, and a k from 0 to {MAX_LENGTH}", f"{layer}: {shown(k)}"
            )
    return least


def read_sdc(path: str | Path, table: ThresholdGrid) -> Tensor:
    """Read the discarded mass that a sdc.txt file has for ``table``: float32 [1, L, Hq, R].

    Raises:
        TopThetaValueError: the table has several k, or the file is missing, malformed, or of another table; with the
            line number.
    """
    if len(table.k) != 1:
        remedy = "the file is of one k: export that k as th.txt, and read both files"
        raise TopThetaValueError("table", "a table of one k", shown(table.k.tolist()), remedy)
    lines = parse_sdc(path, table.layer_targets(int(table.k[0])), table.num_heads)
    lengths = table.lengths.numpy()
    mass = np.zeros(table.theta.shape[1:])
    known = np.zeros(mass.shape, dtype=np.bool_)
    for (layer, head), entries in lines.items():
        _pool(entries, lengths, mass[layer, head], np.zeros(len(lengths), dtype=np.int64), known[layer, head])
    wanted = table.theta[0].numpy() > -np.inf
    for layer, head in np.argwhere(wanted.any(axis=-1) & ~known.any(axis=-1)).tolist():
        raise file_error(path, "lines for every head that has thresholds", f"none for L{layer}_H{head}")
    filled = fill_gaps(mass, known, wanted, lengths)
    return torch.from_numpy(np.where(wanted, filled, 0.0).astype(np.float32))[None]


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


def _fields(lines: Lines, placement: str, k: int, layer_k: tuple[int, ...]) -> dict[str, Any]:
    heads = 1 + max(head for _, head in lines)
    lengths = _knots_for(lines)
    theta = np.full((len(layer_k), heads, len(lengths)), -np.inf)
    counts = np.zeros(theta.shape, dtype=np.int64)
    known = np.zeros(theta.shape, dtype=np.bool_)
    for (layer, head), entries in lines.items():
        _pool(entries, lengths, theta[layer, head], counts[layer, head], known[layer, head])
    wanted = np.array([[lengths > max(k, least)] * heads for least in layer_k])
    line = fill_gaps(line_of(placement, torch.from_numpy(theta)), known, wanted, lengths)
    values = np.where(known, theta, theta_of(placement, line))
    tensor = torch.from_numpy(values.astype(np.float32))[None]
    return {
        "theta": tensor,
        "k": torch.tensor([k], dtype=torch.int64, device="cpu"),
        "lengths": torch.from_numpy(lengths),
        "counts": torch.from_numpy(counts),
        "std": torch.zeros_like(tensor),
        "layer_k": layer_k,
    }


def _check_grid(path: str | Path, lines: Lines) -> None:
    layers = 1 + max(layer for layer, _ in lines)
    heads = 1 + max(head for _, head in lines)
    for layer in range(layers):
        for head in range(heads):
            if (layer, head) not in lines:
                raise file_error(path, f"lines for {layers} layers x {heads} heads", f"none for L{layer}_H{head}")


def _knots_for(lines: Lines) -> Integers:
    present = sorted({length for entries in lines.values() for length in entries})
    if len(present) > MAX_LENGTH_KNOTS:
        present = length_knots(present[-1], present[0])
    return np.array(present, dtype=np.int64)


def _pool(entries: dict[int, Line], lengths: Integers, theta: np.ndarray, counts: Integers, known: np.ndarray) -> None:
    """Write the mean value of each knot's bucket, weighted by the counts, into the rows given."""
    buckets = bucket_of(torch.tensor(list(entries), dtype=torch.int64, device="cpu"), lengths.tolist()).numpy()
    values = np.array([line.value for line in entries.values()])
    samples = np.array([line.count for line in entries.values()], dtype=np.int64)
    for bucket in np.unique(buckets):
        inside = buckets == bucket
        weights = samples[inside] if samples[inside].any() else None
        single = inside.sum() == 1
        theta[bucket] = values[inside][0] if single else np.average(values[inside], weights=weights)
        counts[bucket] = samples[inside].sum()
        known[bucket] = True
