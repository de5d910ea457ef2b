"""Thresholds as a function of the row length (paper, "Threshold function fitting")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaValueError
from .knots import Floats, Integers

if TYPE_CHECKING:
    from .table import Placement, ThresholdTable


@dataclass(frozen=True, eq=False)
class ThresholdFit:
    """A few coefficients per (k, layer, head) in place of one threshold per row length.

    Pre-softmax, theta = c0 + c1/n + c2*log n; post-softmax, log theta = c0 + c1*log n.

    Attributes:
        coefficients: float64 [K, L, Hq, C], C = 3 (pre) or 2 (post); c0 is -inf where a head has no
            thresholds to fit, and trailing coefficients are 0 where it has fewer than C.
    """

    placement: Placement
    coefficients: Tensor

    def predict(self, lengths: Tensor) -> Tensor:
        """Thresholds at ``lengths``, in the unit of the table; dense rows are not treated specially.

        Args:
            lengths: integers [N], at least 1.

        Returns:
            float32 [K, L, Hq, N].

        Raises:
            TopThetaValueError: a length is below 1.
        """
        if bool((lengths < 1).any()):
            raise TopThetaValueError("lengths", "numbers of at least 1", str(int(lengths.min())))
        line = _evaluate(self.coefficients, _basis(self.placement, lengths.cpu().numpy()))
        return torch.from_numpy(theta_of(self.placement, line).astype(np.float32))

    def line(self, k_index: int, layer: int, lengths: Integers) -> Floats:
        """Theta, or log theta after the softmax, of one k and layer: float64 [Hq, N]."""
        return _evaluate(self.coefficients[k_index, layer], _basis(self.placement, lengths))


def fit_table(table: ThresholdTable) -> ThresholdFit:
    """Least squares with the calibration counts as weights, one problem per (k, layer, head)."""
    lengths = table.lengths.numpy()
    basis = _basis(table.placement, lengths).T
    line = line_of(table.placement, table.theta)
    weights = table.counts.numpy().astype(np.float64)
    coefficients = np.zeros((*line.shape[:3], basis.shape[1]))
    for index in np.ndindex(line.shape[:3]):
        target = table.layer_targets(int(table.k[index[0]]))[index[1]]
        usable = np.isfinite(line[index]) & (lengths > target) & (weights[index[1:]] > 0)
        terms = min(int(usable.sum()), basis.shape[1])
        if terms == 0:
            coefficients[index][0] = -np.inf
            continue
        root = np.sqrt(weights[index[1:]][usable])
        solution = np.linalg.lstsq(basis[usable, :terms] * root[:, None], line[index][usable] * root)
        coefficients[index][:terms] = solution[0]
    return ThresholdFit(table.placement, torch.from_numpy(coefficients))


def line_of(placement: str, theta: Tensor) -> Floats:
    """What is linear between knots: theta, or after the softmax log theta (-inf for theta <= 0); float64."""
    values = theta.numpy().astype(np.float64)
    if placement != "post_softmax":
        return values
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(values, 0.0))


def theta_of(placement: str, line: Floats) -> Floats:
    """The inverse of :func:`line_of`; dense stays -inf."""
    return np.where(line == -np.inf, line, np.exp(line)) if placement == "post_softmax" else line


def _evaluate(coefficients: Tensor, basis: Floats) -> Floats:
    # Not a matrix product: with three terms a sum, it would only wake the threads of the BLAS.
    values: Floats = np.einsum("...c,cn->...n", coefficients.numpy(), basis)
    return values


def _basis(placement: str, lengths: Integers) -> Floats:
    n = lengths.astype(np.float64)
    if placement == "post_softmax":
        return np.stack([np.ones_like(n), np.log(n)])
    return np.stack([np.ones_like(n), 1.0 / n, np.log(n)])
