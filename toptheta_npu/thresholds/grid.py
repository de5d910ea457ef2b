"""Holds the data of a table: numbers at knots of k and of row length, with their origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .checks import DTYPES, calibrated_with, check_fields
from .kinds import UNITS, DiscardedStatistic, Estimator, Placement


@dataclass(frozen=True, eq=False, kw_only=True)
class ThresholdGrid:
    """Hold the fields of a `ThresholdTable`, checked and fixed at construction; that class describes them."""

    theta: Tensor
    k: Tensor
    lengths: Tensor
    counts: Tensor
    std: Tensor
    placement: Placement
    estimator: Estimator
    alpha: float
    layer_k: Sequence[int]
    fingerprint: str
    provenance: Mapping[str, str] = field(default_factory=dict)
    discarded_mass: Tensor | None = None
    discarded_statistic: DiscardedStatistic | None = None
    key_cache_scale: Tensor | None = None
    value_cache_scale: Tensor | None = None

    def __post_init__(self) -> None:
        check_fields(vars(self))
        object.__setattr__(self, "layer_k", tuple(self.layer_k))
        object.__setattr__(self, "provenance", dict(self.provenance))
        for name in DTYPES:
            tensor = getattr(self, name)
            if tensor is not None:
                copy = tensor.detach().to("cpu", copy=True).contiguous()
                object.__setattr__(self, name, copy)

    @property
    def num_layers(self) -> int:
        """Number of layers, L."""
        return self.theta.shape[1]

    @property
    def num_heads(self) -> int:
        """Number of query heads per layer, Hq."""
        return self.theta.shape[2]

    @property
    def unit(self) -> str:
        """The unit of theta: ``"scaled score"`` or ``"probability"``."""
        return UNITS[self.placement]

    @property
    def calibrated_targets(self) -> Tensor:
        """The k that the thresholds were calibrated for, int64 [K, L]: ``max(k[i], layer_k[l])``."""
        return torch.maximum(self.k[:, None], torch.tensor(self.layer_k, dtype=torch.int64, device="cpu"))

    def layer_targets(self, k: int) -> list[int]:
        """Return the number of elements that each layer keeps at ``k``: ``max(k, layer_k[l])``.

        Raises:
            TopThetaTypeError: ``k`` is not an int.
            TopThetaValueError: ``k`` is outside the calibrated knots.
        """
        if type(k) is not int:
            raise TopThetaTypeError("k", "an int", shown(k))
        low, high = int(self.k[0]), int(self.k[-1])
        if not low <= k <= high:
            known = f"{low}, the calibrated k" if low == high else f"{low} to {high}, the calibrated range"
            raise TopThetaValueError("k", known, shown(k), calibrated_with(k))
        return [max(k, layer_k) for layer_k in self.layer_k]
