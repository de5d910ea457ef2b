"""What rows of one sequence lose under thresholds: the compensated outputs of their heads against dense ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...calibration.row_statistics import take_rows
from ...fallback.compensation import Compensation, score_threshold
from ...fallback.reference import select, weighted_values
from .rows import SequenceRows


@dataclass(frozen=True)
class Compensated:
    """How discarded elements are made up for: "exact" or "none", and with the mean V row or without."""

    sdc: str
    vmc: bool


class ErrorRows:
    """Some rows of a layer, whose softmax is worked out once for any number of thresholds.

    Args:
        sequence: of the layer.
        rows: int64 [R], ascending.
        compensated: how.
        placement: of the thresholds.

    Attributes:
        lengths: int64 [R], keys of each row.
        dense: float32 [Hq, R, D], the outputs of the heads with all elements.
    """

    def __init__(self, sequence: SequenceRows, rows: Tensor, compensated: Compensated, placement: str) -> None:
        self.lengths = sequence.lengths(rows)
        self._scores = sequence.scores(rows)
        self._value = sequence.value[None, :, : self._scores.shape[-1]]
        self._maximum = self._scores.amax(-1)
        self._exponentials = (self._scores - self._maximum[..., None]).exp_()
        mean = None if sequence.value_mean is None else take_rows(sequence.value_mean, sequence.past + rows)[None]
        sink = sequence.learnable_sink
        self._compensation = Compensation(sdc=compensated.sdc, value_mean=mean, learnable_sink=sink)
        self._placement = placement
        self._lse = self._compensation.lse(self._scores[None])[0]
        self.dense = self._output(torch.ones_like(self._scores, dtype=torch.bool), self._maximum)

    def keep(self, threshold: Tensor) -> Tensor:
        """Choose the elements above ``threshold`` [Hq, R], or else the largest: bool [Hq, R, S]."""
        return select(self._scores[None], score_threshold(threshold, self._lse, self._placement)[None])[0]

    def error(self, keep: Tensor, threshold: Tensor) -> Tensor:
        """Compute how far the heads' outputs are off with what is kept: [Hq, R, D]."""
        return self._output(keep, score_threshold(threshold, self._lse, self._placement)).sub_(self.dense)

    def value_rows(self, keep: Tensor) -> Tensor:
        """Count the V rows that the heads of a group keep together: int64 [Hkv, R]."""
        grouped = keep.unflatten(0, (self._value.shape[1], -1))
        rows: Tensor = grouped.any(dim=1).sum(dim=-1)
        return rows

    def _output(self, keep: Tensor, threshold: Tensor) -> Tensor:
        weights = torch.where(keep, self._exponentials, 0.0)
        kept_mass, exact = weights.sum(-1), torch.where(keep, 0.0, self._exponentials).sum(-1)
        out: Tensor = self._compensation.apply(
            weighted_values(weights[None], self._value), kept_mass[None], exact[None], self.lengths,
            keep.sum(-1)[None], self._maximum[None], threshold[None],
        )  # fmt: skip
        return out[0]
