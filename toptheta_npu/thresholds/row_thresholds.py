"""Works out thresholds of single rows at one k, from what a table gives for all k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .fit import ThresholdFit, fit_table, line_of
from .grid import ThresholdGrid
from .interpolation import BetweenKnots, Cells, first_usable, fitted, interpolated, usable_lines
from .kinds import LookupForm
from .knots import Floats, Integers, locate


@dataclass(frozen=True, eq=False)
class Source:
    """Hold what rows are worked out from, whatever their k.

    Attributes:
        table: the table.
        lines: float64 [L, K, R, Hq], theta as it is linear between the knots.
        mass: float64 [L, K, R, Hq], the discarded mass, -inf where theta is; None if it is not wanted.
        shortest: int64 [K, L], the first calibrated length of every k and layer.
        fit: the function of the length that all rows follow; None: they are interpolated.
    """

    table: ThresholdGrid
    lines: Floats
    mass: Floats | None
    shortest: Integers
    fit: ThresholdFit | None

    @classmethod
    def of(cls, table: ThresholdGrid, form: LookupForm, discarded_mass: bool) -> Source:
        """Prepare the rows, with their discarded mass if it is wanted and known."""
        first = first_usable(table)
        lines, mass = usable_lines(line_of(table.placement, table.theta), first), None
        if discarded_mass and table.discarded_mass is not None:
            mass = usable_lines(table.discarded_mass.numpy().astype(np.float64), first)
            mass = np.where(lines == -np.inf, -np.inf, mass)
        shortest = table.lengths.numpy()[np.minimum(first, len(table.lengths) - 1)]
        return cls(table, lines, mass, shortest, fit_table(table) if form == "fitted" else None)


class Rows:
    """Work out rows of ``lengths`` [N] that keep ``target`` elements and are dense up to a number of keys."""

    def __init__(self, source: Source, lengths: Integers) -> None:
        self._source = source
        self._lengths = lengths
        self._cells = Cells.of(locate(source.table.lengths.numpy(), lengths))

    def theta(self, layer: int, target: int, dense_up_to: int) -> Tensor:
        """Work out the thresholds: float32 [N, Hq]."""
        source, by_k = self._source, BetweenKnots.of(self._source.table, layer, target)
        if source.fit is not None:
            rows = fitted(source.fit, layer, np.maximum(self._lengths, 1), by_k, source.shortest[:, layer])
        else:
            logarithmic = source.table.placement == "post_softmax"
            rows = interpolated(source.lines[layer], self._cells, by_k, logarithmic=logarithmic)
        rows[torch.from_numpy(self._lengths <= dense_up_to)] = -torch.inf
        return rows

    def discarded_mass(self, layer: int, target: int, theta: Tensor) -> Tensor | None:
        """Work out the discarded mass, float32 [N, Hq]: 0 where ``theta``, the thresholds of these rows, is -inf."""
        if self._source.mass is None:
            return None
        by_k = BetweenKnots.of(self._source.table, layer, target)
        rows = interpolated(self._source.mass[layer], self._cells, by_k, dense=0.0)
        return torch.where(theta > -torch.inf, rows, 0.0)
