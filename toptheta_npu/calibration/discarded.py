"""Runs the second calibration pass: how much exponential mass the thresholds discard (offline SDC).

The mass E of a row is heavy-tailed: if attention is sharp, the mean over the rows can be hundreds of times larger than
the mass of most rows. Compensation with such a mean takes most of the weight away from almost every row, which is worse
than no compensation. The geometric mean matches a typical row.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaValueError
from ..thresholds import DiscardedStatistic, ThresholdTable
from ..thresholds.kinds import DISCARDED_STATISTICS
from ..thresholds.knots import Floats, bucket_of, fill_gaps
from ..thresholds.lookup import Lookup
from .blocks import ScoreBlocks
from .moments import Moments

# Less is lost in the rounding of the kept mass, which is at least 1, and log 0 would be -inf.
_SMALLEST_MASS = 2.0**-24


class Masses(NamedTuple):
    """The discarded mass of some rows of one layer: ``mass`` float32 [Hq, K, rows], ``lengths`` int64 [rows]."""

    layer: int
    mass: np.ndarray
    lengths: Tensor


class DiscardedMass:
    """Averages the sum of exp(a - row max) over the elements that a table discards: arithmetic and geometric mean.

    An element is kept when it exceeds theta. A row without any keeps its largest element, as at inference.

    Raises:
        TopThetaValueError: ``table`` is post-softmax, where the compensation is exact by construction.
    """

    def __init__(self, table: ThresholdTable) -> None:
        if table.placement == "post_softmax":
            remedy = "its compensation is exact without estimates"
            raise TopThetaValueError("table", "pre_softmax thresholds", "post_softmax", remedy)
        self.table = table
        self._lookup = Lookup(table)
        shape = (table.num_heads, len(table.lengths))
        self._moments = {
            statistic: [[Moments(shape) for _ in range(table.num_layers)] for _ in table.k]
            for statistic in DISCARDED_STATISTICS
        }

    def look(self, layer: int, blocks: ScoreBlocks, learnable_sink: Tensor | None = None) -> Masses:
        """Compute the discarded mass of rows; arguments as in `Calibrator.look`."""
        del learnable_sink  # it is neither kept nor discarded
        knots = range(len(self.table.k))
        by_knot = [self._lookup.calibrated_rows(knot, layer, blocks.lengths.numpy()) for knot in knots]
        theta, parts = torch.from_numpy(np.array(by_knot)).to(blocks.device), []
        for rows, scores in blocks:
            parts.append(torch.stack([_mass(own, theta[:, head, rows]) for head, own in enumerate(scores)]))
        return Masses(layer, torch.cat(parts, -1).cpu().numpy(), blocks.lengths)

    def add(self, seen: Masses) -> None:
        """Add the result of :meth:`look`."""
        layer, mass, lengths = seen
        buckets = bucket_of(lengths, self.table.lengths.tolist()).numpy()
        for index, k in enumerate(self.table.calibrated_targets[:, layer].tolist()):
            chosen = (lengths > k).numpy()
            values = mass[:, index, chosen]
            self._moments["mean"][index][layer].update(values, buckets[chosen])
            logarithms = np.log(np.maximum(values, _SMALLEST_MASS, dtype=np.float64))
            self._moments["geometric_mean"][index][layer].update(logarithms, buckets[chosen])

    def extended(self, statistic: DiscardedStatistic) -> ThresholdTable:
        """Return the table with the statistic at every knot; lengths without rows are filled from their neighbours.

        Raises:
            TopThetaValueError: none of the rows of a layer was long enough.
        """
        by_k = self._moments[statistic]
        mean: Floats = np.array([[moments.mean for moments in layers] for layers in by_k])
        if statistic == "geometric_mean":
            mean = np.exp(mean)
        known = np.array([[moments.count > 0 for moments in layers] for layers in by_k])
        wanted = self.table.theta.numpy() > -np.inf
        unseen = wanted.any(axis=-1) & ~known.any(axis=-1)
        if unseen.any():
            index, layer, _ = np.argwhere(unseen)[0]
            raise TopThetaValueError(
                "sequences",
                f"rows longer than {self.table.calibrated_targets[index, layer]} in layer {layer}",
                "none",
                "run the second pass over the same sequences as the first",
            )
        filled = fill_gaps(mean, known, wanted, self.table.lengths.numpy())
        mass = torch.from_numpy(np.where(wanted, filled, 0.0).astype(np.float32))
        return dataclasses.replace(self.table, discarded_mass=mass, discarded_statistic=statistic)


def _mass(rows: Tensor, theta: Tensor) -> Tensor:
    largest, position = rows.max(dim=-1, keepdim=True)
    weight = torch.exp(rows - largest)
    return torch.stack([
        weight.masked_fill((rows > own[:, None]).scatter_(1, position, True), 0.0).sum(dim=-1) for own in theta
    ])  # fmt: skip
