"""Gives one threshold per row length, ready for a decode step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .kinds import RowPlacement


class ThresholdExtrapolationWarning(UserWarning):
    """Thresholds were requested for rows longer than the calibrated ones."""


class MeanDiscardedMassWarning(UserWarning):
    """``sdc="offline"`` uses the mean discarded mass, which a few rows make far too large for most."""


@dataclass(frozen=True, eq=False)
class ThresholdsAtK:
    """Thresholds of one target on one device, a row per length.

    A decode step takes one indexing operation without host synchronisation: ``theta[layer][n]`` with n an
    int64 device tensor [B] gives [B, Hq]. :meth:`rows` clamps n first, and respects a ``dense_below`` beyond N.

    Attributes:
        k: elements to keep per row; None if the threshold is tau.
        placement: ``"pre_softmax"`` (theta in units of the scaled score), ``"post_softmax"`` or ``"sampled_softmax"``.
        longest: N, the last length with a row of its own.
        layer_targets: the effective k of every layer.
        dense_up_to: the length of the longest dense row of every layer: its effective k, or ``dense_below`` minus one.
        theta: per layer float32 [N+1, Hq]; -inf in the rows 0 to ``dense_up_to``. With a ``dense_below`` beyond N, only
            row N has thresholds; it serves the longer rows that are not dense.
        discarded_mass: per layer float32 [N+1, Hq] relative to exp(row max), 0 where theta is -inf;
            None if the table has none.
        aims: per layer int32 [N+1], the number of elements that a row aims at unless it is dense.
        dense_below: rows of fewer keys are dense.
    """

    k: int | None
    placement: RowPlacement
    longest: int
    layer_targets: tuple[int, ...]
    dense_up_to: tuple[int, ...]
    theta: tuple[Tensor, ...]
    discarded_mass: tuple[Tensor, ...] | None
    aims: tuple[Tensor, ...]
    dense_below: int = 0

    def rows(self, layer: int, lengths: Tensor) -> Tensor:
        """Look up the thresholds of rows of any length; rows longer than N use row N if they are not dense.

        Works under torch.compile.

        Args:
            layer: index of the layer.
            lengths: int32 or int64 [...], on the device of the thresholds.

        Returns:
            float32 [..., Hq].

        Raises:
            TopThetaTypeError: ``lengths`` are not integers.
            TopThetaValueError: the model has no such layer.
        """
        return self._rows(self.theta, layer, lengths)

    def row(self, layer: int, length: int) -> Tensor:
        """Look up the thresholds of one length, known to the host, like :meth:`rows`: a view, float32 [Hq]."""
        place = 0 if length < self.dense_below else min(length, self.longest)
        return self.theta[layer][place]

    def discarded_mass_rows(self, layer: int, lengths: Tensor) -> Tensor:
        """Look up the offline estimate of the discarded mass for rows of any length, like :meth:`rows`.

        Raises:
            TopThetaTypeError: ``lengths`` are not integers.
            TopThetaValueError: the model has no such layer, or the table has no discarded mass.
        """
        if self.discarded_mass is None:
            raise TopThetaValueError(
                "discarded_mass", "a table calibrated with it", "None", "run the second calibration pass"
            )
        return self._rows(self.discarded_mass, layer, lengths)

    def aim_rows(self, layer: int, lengths: Tensor) -> Tensor:
        """Look up the number of elements that rows of any length aim at, like :meth:`rows`.

        Returns:
            int32 [...].

        Raises:
            TopThetaTypeError, TopThetaValueError: as :meth:`rows`.
        """
        return self._rows(self.aims, layer, lengths)

    def places(self, lengths: Tensor) -> Tensor:
        """Find the index in ``theta`` and the other tensors for rows of any length, like :meth:`rows`.

        Returns:
            int64 [...].

        Raises:
            TopThetaTypeError: ``lengths`` are not integers.
        """
        if not isinstance(lengths, Tensor):
            raise TopThetaTypeError("lengths", "an int32 or int64 tensor", shown(lengths))
        if lengths.dtype not in (torch.int32, torch.int64):
            raise TopThetaTypeError("lengths", "int32 or int64", str(lengths.dtype))
        places = lengths.to(torch.int64).clamp(0, self.longest)
        if self.dense_below > self.longest:
            places = torch.where(lengths < self.dense_below, 0, places)
        return places

    def _rows(self, source: tuple[Tensor, ...], layer: int, lengths: Tensor) -> Tensor:
        if not 0 <= layer < len(source):
            raise TopThetaValueError("layer", f"0 to {len(source) - 1}", str(layer))
        return source[layer][self.places(lengths)]
