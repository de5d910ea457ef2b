"""One probability for all layers, heads and row lengths, in the form of a table: nothing is calibrated."""

from __future__ import annotations

import dataclasses

import torch

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .at_k import ThresholdsAtK
from .checks import is_finite_number
from .kinds import MAX_LENGTH, Lse, RowPlacement
from .lookup import Lookup
from .table import ThresholdTable
from .targets import Target

#: Rows of up to this many keys are dense; longer ones have the one threshold.
SHORTEST = 2


def uniform_table(tau: float, layers: int, heads: int) -> ThresholdTable:
    """Make thresholds that drop every element whose probability is at most ``tau``, in rows of any length.

    0 drops nothing. Its thresholds are scores of -inf, which need no LSE of the row.

    Raises:
        TopThetaTypeError: ``tau`` is not a number.
        TopThetaValueError: ``tau`` is below 0, or 1 or more.

    Example:
        >>> uniform_table(0.001, 2, 4).at(SHORTEST).theta[0][-1]
        tensor([0.0010, 0.0010, 0.0010, 0.0010])
    """
    check_tau(tau)
    theta = torch.full((1, layers, heads, 1), tau or -torch.inf, dtype=torch.float32, device="cpu")
    knot = torch.tensor([SHORTEST], dtype=torch.int64, device="cpu")
    return ThresholdTable(
        theta=theta, k=knot, lengths=knot + 1, counts=torch.ones_like(theta[0], dtype=torch.int64),
        std=torch.zeros_like(theta), placement="post_softmax" if tau else "pre_softmax", estimator="pooled", alpha=0.0,
        layer_k=[0] * layers, fingerprint="", provenance={"tau": repr(tau)},
    )  # fmt: skip


def check_tau(tau: float) -> None:
    """Raise a typed error unless ``tau`` is a probability, at least 0 and below 1."""
    if not is_finite_number(tau):
        raise TopThetaTypeError("tau", "a number", shown(tau))
    if not 0 <= tau < 1:
        raise TopThetaValueError("tau", "a probability from 0 to below 1", shown(tau), "such as 0.001")


class UniformLookup(Lookup):
    """Look up the thresholds of `uniform_table`, which have no target number of elements.

    Attributes:
        lse: how to compute the denominator of the probabilities, "exact" or "sampled".
    """

    def __init__(self, tau: float, layers: int, heads: int, lse: Lse = "exact") -> None:
        super().__init__(uniform_table(tau, layers, heads))
        self.lse = lse
        self._layers, self._heads = layers, heads
        self._placement: RowPlacement = "post_softmax" if lse == "exact" else "sampled_softmax"
        if not tau:
            self._placement = "pre_softmax"

    def with_tau(self, tau: float) -> UniformLookup:
        """Make the same with another tau. The placement must not change, since steps may be captured.

        Raises:
            TopThetaTypeError, TopThetaValueError: as `check_tau`, or this tau is 0 and the new one is not.
        """
        check_tau(tau)
        if tau and self._placement == "pre_softmax":
            remedy = "enter sparsify with a tau above 0, and set it to 0 within"
            raise TopThetaValueError("tau", "0, as the context was entered with", shown(tau), remedy)
        other = UniformLookup(tau, self._layers, self._heads, self.lse)
        other._placement = self._placement
        return other

    def anywhere(self, dense_below: int = 0, device: torch.device | str = "cpu") -> ThresholdsAtK:
        """Look up the thresholds; rows of fewer than ``dense_below`` keys are dense."""
        return self.at(Target(k=SHORTEST, dense_below=dense_below), device)

    def at(self, target: Target, device: torch.device | str = "cpu") -> ThresholdsAtK:
        """Look them up; of ``target``, whose k is `SHORTEST`, only ``dense_below`` counts."""
        found = super().at(target, device)
        # a row that aims at all of its keys is one of which nothing is said
        aims = tuple(torch.full_like(each, MAX_LENGTH) for each in found.aims)
        return dataclasses.replace(found, k=None, aims=aims, placement=self._placement)
