"""Turns the statistics of all cells into a table: drops or fills empty lengths, marks dense rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from ..errors import TopThetaValueError
from ..thresholds import ThresholdTable
from ..thresholds.fit import line_of, theta_of
from ..thresholds.knots import Floats, Integers, fill_gaps
from .settings import CalibrationSettings


class Statistics(NamedTuple):
    """float64 [K, L, Hq, R] each; cells without rows hold anything."""

    theta: Floats
    std: Floats


def assemble(
    settings: CalibrationSettings,
    counts: Integers,
    statistics: Statistics,
    fingerprint: str,
    provenance: Mapping[str, str],
) -> ThresholdTable:
    """Make the table; ``counts`` int64 [L, R] are the rows behind each length of ``settings.knots()``."""
    keep = counts.any(axis=0)
    knots = np.array(settings.knots(), dtype=np.int64)[keep]
    cells = np.broadcast_to(counts[:, None, keep], (settings.num_layers, settings.num_heads, len(knots)))
    targets = np.array([settings.targets(layer) for layer in range(settings.num_layers)]).T
    above = knots > targets[..., None, None]
    # A layer without a single row longer than its calibrated k has nothing to fill from: it is dense.
    known = above & (cells > 0)
    wanted = above & known.any(axis=-1, keepdims=True)

    def filled(values: Floats, elsewhere: float) -> Floats:
        return np.where(wanted, fill_gaps(values[..., keep], known, wanted, knots), elsewhere)

    line = filled(line_of(settings.placement, torch.from_numpy(statistics.theta)), -np.inf)
    return ThresholdTable(
        theta=_float32(theta_of(settings.placement, line)),
        k=torch.tensor(settings.k, dtype=torch.int64, device="cpu"),
        lengths=torch.from_numpy(knots),
        counts=torch.from_numpy(cells.copy()),
        std=_float32(filled(statistics.std, 0.0)),
        placement=settings.placement,
        estimator=settings.estimator,
        alpha=settings.alpha,
        layer_k=settings.layer_k,
        fingerprint=fingerprint,
        provenance=provenance,
    )


def _float32(values: Floats) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def check_complete(settings: CalibrationSettings, observed: Integers, counts: Integers) -> None:
    """Raise where thresholds would be missing: ``observed`` [L] rows fed, ``counts`` [L, R] rows used."""
    missing = [layer for layer in np.flatnonzero(observed == 0).tolist() if layer not in settings.dense_layers]
    if missing:
        remedy = "observe each layer, in more sequences or with a larger row_fraction"
        raise TopThetaValueError("observe", "rows of every layer", f"none of layers {missing}", remedy)
    knots = np.array(settings.knots())
    for index, k in enumerate(settings.k):
        used = [counts[layer, knots > settings.targets(layer)[index]].any() for layer in range(settings.num_layers)]
        if not any(used):
            raise TopThetaValueError(
                "observe",
                f"some rows longer than k={k} (and the layer's own minimum)",
                "none",
                "feed longer sequences, or leave out this k",
            )
