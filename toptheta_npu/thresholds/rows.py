"""Works out thresholds of single rows under one target, from what a table gives for all targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .fit import ThresholdFit, fit_table, line_of
from .grid import ThresholdGrid
from .interpolation import Cells, first_usable, fitted, interpolated, usable_lines
from .kinds import Extrapolation, LookupForm
from .knots import Floats, Integers, Places, locate
from .targets import Target


@dataclass(frozen=True, eq=False)
class Source:
    """Hold what rows are worked out from, whatever their target.

    Attributes:
        table: the table.
        lines: float64 [L, K, R, Hq], theta as it is linear between the knots.
        mass: float64 [L, K, R, Hq], the discarded mass, -inf where theta is; None if it is not wanted.
        shortest: int64 [K, L], the first calibrated length of every k and layer.
        fit: the function of the length; None where no row follows it.
        by_function: whether rows of calibrated lengths follow the function, too.
        held: whether rows beyond the calibrated lengths take the function's value at the last of them.
    """

    table: ThresholdGrid
    lines: Floats
    mass: Floats | None
    shortest: Integers
    fit: ThresholdFit | None
    by_function: bool
    held: bool

    @classmethod
    def of(
        cls, table: ThresholdGrid, longest: int, extrapolation: Extrapolation, form: LookupForm, discarded_mass: bool
    ) -> Source:
        """Prepare the rows of up to ``longest`` keys, with their discarded mass if it is wanted and known."""
        first = first_usable(table)
        lines, mass = usable_lines(line_of(table.placement, table.theta), first), None
        if discarded_mass and table.discarded_mass is not None:
            mass = usable_lines(table.discarded_mass.numpy().astype(np.float64), first)
            mass = np.where(lines == -np.inf, -np.inf, mass)
        beyond = extrapolation == "fitted" and longest > int(table.lengths[-1])
        by_function = form == "fitted"
        return cls(
            table, lines, mass, table.lengths.numpy()[np.minimum(first, len(table.lengths) - 1)],
            fit_table(table) if by_function or beyond else None, by_function, extrapolation == "nearest",
        )  # fmt: skip


@dataclass(frozen=True)
class Aims:
    """Hold what the layers of one minimum have in common in rows of all lengths [N].

    Attributes:
        aims: int64, the elements that a row aims at.
        dense: bool, whether it is dense.
        by_k: where it lies between the knots of k.
        cells: where it lies between the knots of k and of length.
    """

    aims: Integers
    dense: NDArray[np.bool_]
    by_k: Places
    cells: Cells


class Rows:
    """Work out rows of ``lengths`` [N] under one target; with a function, these are 0 to the longest."""

    def __init__(self, source: Source, target: Target, lengths: Integers) -> None:
        self._source = source
        self._table = source.table
        self._target = target
        self._lengths = lengths
        self._aims: dict[int, Aims] = {}

    def aims(self, layer_k: int) -> Aims:
        """Work out what layers that keep at least ``layer_k`` elements have in common."""
        if layer_k not in self._aims:
            wanted = self._target.of(self._lengths, self._table)
            aims = np.maximum(wanted, layer_k)
            dense = (self._lengths <= aims) | (self._lengths < self._target.dense_below)
            by_k = locate(self._table.k.numpy(), wanted, layer_k)
            cells = Cells.of(locate(self._table.lengths.numpy(), self._lengths), by_k)
            self._aims[layer_k] = Aims(aims, dense, by_k, cells)
        return self._aims[layer_k]

    def theta(self, layer: int) -> Tensor:
        """Work out the thresholds: float32 [N, Hq]."""
        source, here = self._source, self.aims(self._table.layer_k[layer])
        calibrated = int(self._table.lengths[-1])
        # the rows from here on are those of the function, if there is one
        start = 0
        if source.by_function:
            rows = torch.empty(len(self._lengths), self._table.num_heads)
        else:
            rows = interpolated(source.lines[layer], here.cells, logarithmic=self._table.placement == "post_softmax")
            start = calibrated + 1
        if source.fit is not None:
            lengths = np.maximum(self._lengths[start:], 1)
            if source.held:
                lengths = np.minimum(lengths, calibrated)
            rows[start:] = fitted(
                source.fit, layer, lengths, here.by_k.part(slice(start, None)), source.shortest[:, layer]
            )
        rows[torch.from_numpy(np.flatnonzero(here.dense))] = -torch.inf
        return rows

    def discarded_mass(self, layer: int, theta: Tensor) -> Tensor | None:
        """Work out the discarded mass, float32 [N, Hq]: 0 where ``theta``, the thresholds of these rows, is -inf."""
        if self._source.mass is None:
            return None
        here = self.aims(self._table.layer_k[layer])
        rows = interpolated(self._source.mass[layer], here.cells, dense=0.0)
        if self._source.fit is not None:
            return torch.where(theta > -torch.inf, rows, 0.0)
        rows[torch.from_numpy(np.flatnonzero(here.dense))] = 0.0
        return rows
