"""Works out thresholds of single rows under one target, from what a table gives for all targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .fit import ThresholdFit, fit_table, line_of
from .grid import ThresholdGrid
from .interpolation import Cells, first_usable, fitted, interpolated, lines_between, usable_lines
from .kinds import Extrapolation, LookupForm
from .knots import Floats, Integers, Places, locate
from .targets import LayerAims


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


class Rows:
    """Work out rows of ``lengths`` [N] under one target; with a function, these are 0 to the longest."""

    def __init__(self, source: Source, lengths: Integers) -> None:
        self._source = source
        self._lengths = lengths
        self._by_length = locate(source.table.lengths.numpy(), lengths)
        self._between_two = Cells.between_two(self._by_length)
        self._of_rows: dict[int, tuple[Places, Cells]] = {}

    def theta(self, layer: int, aims: LayerAims) -> Tensor:
        """Work out the thresholds of rows that aim at ``aims``: float32 [N, Hq]."""
        source, table = self._source, self._source.table
        # the rows from here on are those of the function, if there is one
        start = 0
        if source.by_function:
            rows = torch.empty(len(self._lengths), table.num_heads, dtype=torch.float32, device="cpu")
        else:
            rows = self._interpolated(source.lines, layer, aims, logarithmic=table.placement == "post_softmax")
            start = int(table.lengths[-1]) + 1
        if source.fit is not None:
            self._follow_function(rows[start:], start, layer, aims)
        return self._with_dense(rows, aims, -torch.inf)

    def discarded_mass(self, layer: int, aims: LayerAims, theta: Tensor) -> Tensor | None:
        """Work out the discarded mass, float32 [N, Hq]: 0 where ``theta``, the thresholds of these rows, is -inf."""
        if self._source.mass is None:
            return None
        rows = self._interpolated(self._source.mass, layer, aims, dense=0.0)
        if self._source.fit is not None:
            return torch.where(theta > -torch.inf, rows, 0.0)
        return self._with_dense(rows, aims, 0.0)

    def _interpolated(self, lines: Floats, layer: int, aims: LayerAims, **options: Any) -> Tensor:
        if not isinstance(aims.elements, int):
            return interpolated(lines[layer], self._places_of_rows(layer, aims.elements)[1], **options)
        by_k = self._locate_k(layer, np.array([aims.elements]))
        cells = self._between_two._replace(v=float(by_k.weight[0]))
        return interpolated(lines_between(lines[layer], by_k), cells, **options)

    def _follow_function(self, rows: Tensor, start: int, layer: int, aims: LayerAims) -> None:
        """Write the values of the function into ``rows``, those from ``start`` on."""
        source, calibrated = self._source, int(self._source.table.lengths[-1])
        assert source.fit is not None
        lengths = np.maximum(self._lengths[start:], 1)
        if source.held:
            lengths = np.minimum(lengths, calibrated)
        shortest = source.shortest[:, layer]
        if isinstance(aims.elements, int):
            by_k = self._locate_k(layer, np.full(len(lengths), aims.elements))
        else:
            by_k = self._places_of_rows(layer, aims.elements)[0].part(slice(start, None))
        rows.copy_(fitted(source.fit, layer, lengths, by_k, shortest))

    def _locate_k(self, layer: int, aims: Integers) -> Places:
        return locate(self._source.table.k.numpy(), aims, self._source.table.layer_k[layer])

    def _places_of_rows(self, layer: int, elements: Integers) -> tuple[Places, Cells]:
        """Find where rows with aims of their own lie. Layers with the same least k have the same aims."""
        least = self._source.table.layer_k[layer]
        if least not in self._of_rows:
            by_k = self._locate_k(layer, elements)
            self._of_rows[least] = by_k, Cells.of(self._by_length, by_k)
        return self._of_rows[least]

    def _with_dense(self, rows: Tensor, aims: LayerAims, value: float) -> Tensor:
        """Write ``value`` into dense rows."""
        rows[torch.from_numpy(np.flatnonzero(self._lengths <= aims.dense_up_to))] = value
        return rows
