"""Thresholds as a function of the row length (paper, "Threshold function fitting")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .grid import ThresholdGrid
from .kinds import Placement
from .knots import Floats, Integers


@dataclass(frozen=True, eq=False)
class ThresholdFit:
    """A few coefficients per (k, layer, head) instead of one threshold per row length.

    Pre-softmax, theta = c0 + c1/n + c2*log n; post-softmax, log theta = c0 + c1*log n.

    Attributes:
        coefficients: float64 [K, L, Hq, C], C = 3 (pre) or 2 (post). c0 is -inf if a head has no thresholds to fit;
            trailing coefficients are 0 if it has fewer than C.
    """

    placement: Placement
    coefficients: Tensor

    def predict(self, lengths: Tensor | Sequence[int]) -> Tensor:
        """Predict thresholds at ``lengths``, in the unit of the table, without special treatment of dense rows.

        Args:
            lengths: integers [N], at least 1: a tensor, an array or a list.

        Returns:
            float32 [K, L, Hq, N].

        Raises:
            TopThetaTypeError: ``lengths`` are not integers [N].
            TopThetaValueError: a length is below 1.
        """
        basis = _basis(self.placement, _checked_lengths(lengths))
        line = np.einsum("...c,cn->...n", self.coefficients.numpy(), basis)
        return torch.from_numpy(theta_of(self.placement, line).astype(np.float32))

    def line(self, k_index: int, layer: int, lengths: Integers) -> Floats:
        """Evaluate theta, or log theta after the softmax, of one k and layer at ``lengths``: float64 [N, Hq]."""
        basis = _basis(self.placement, lengths)
        line: Floats = np.einsum("hc,cn->nh", self.coefficients[k_index, layer].numpy(), basis)
        return line


def _checked_lengths(lengths: Tensor | Sequence[int]) -> Integers:
    found = np.asarray(lengths.cpu() if isinstance(lengths, Tensor) else lengths)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        raise TopThetaTypeError("lengths", "integers [N]", shown(lengths), "pass a list of ints, or an int64 tensor")
    if (found < 1).any():
        raise TopThetaValueError("lengths", "numbers of at least 1", str(found.min()))
    return found.astype(np.int64)


def fit_table(table: ThresholdGrid) -> ThresholdFit:
    """Fit by least squares with the calibration counts as weights, one problem per (k, layer, head)."""
    lengths = table.lengths.numpy()
    basis = _basis(table.placement, lengths)
    line = line_of(table.placement, table.theta)
    above = lengths > table.calibrated_targets.numpy()[:, :, None, None]
    weights = np.where(np.isfinite(line) & above, table.counts.numpy().astype(np.float64), 0.0)
    line = np.where(weights > 0, line, 0.0)
    terms = np.minimum((weights > 0).sum(axis=-1), len(basis))
    coefficients = _least_squares(basis.T, line, weights, terms)
    coefficients[terms == 0, 0] = -np.inf
    return ThresholdFit(table.placement, torch.from_numpy(coefficients))


def _least_squares(basis: Floats, values: Floats, weights: Floats, terms: Integers) -> Floats:
    """Fit ``values`` [..., R] by the first ``terms`` [...] columns of ``basis`` [R, C]: coefficients [..., C]."""
    root = np.sqrt(weights)
    used = np.arange(basis.shape[1]) < terms[..., None]
    matrix = root[..., None] * basis * used[..., None, :]
    # The columns have very different sizes. Scaled to the same size, only an absent column counts as absent.
    norm = np.sqrt((matrix**2).sum(axis=-2))
    norm[norm == 0] = 1.0
    # R of the QR decomposition and Q'y at once, so that the singular values are those of small matrices
    both = np.concatenate([matrix / norm[..., None, :], (root * values)[..., None]], axis=-1)
    triangle = np.asarray(np.linalg.qr(both, mode="r"))
    inverse = np.linalg.pinv(triangle[..., :-1], rcond=basis.shape[0] * np.finfo(np.float64).eps)
    coefficients: Floats = (inverse @ triangle[..., -1:])[..., 0] / norm
    return coefficients


def line_of(placement: str, theta: Tensor) -> Floats:
    """Give what is linear between knots: theta, or after the softmax log theta (-inf for theta <= 0); float64."""
    values = theta.numpy().astype(np.float64)
    if placement != "post_softmax":
        return values
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(values, 0.0))


def theta_of(placement: str, line: Floats) -> Floats:
    """Invert :func:`line_of`; dense stays -inf."""
    return np.where(line == -np.inf, line, np.exp(line)) if placement == "post_softmax" else line


def _basis(placement: str, lengths: Integers) -> Floats:
    n = lengths.astype(np.float64)
    if placement == "post_softmax":
        return np.stack([np.ones_like(n), np.log(n)])
    return np.stack([np.ones_like(n), 1.0 / n, np.log(n)])
