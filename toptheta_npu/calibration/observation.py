"""Computes what some rows add to a layer's thresholds, without adding it, so that threads may work in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError
from ..fallback.reference import log_sum_exp
from ..thresholds.knots import Integers, bucket_of
from .blocks import ScoreBlocks
from .counting import Denominators
from .row_statistics import kth_largest
from .settings import CalibrationSettings
from .sketch import SurvivalSketch


class Observation(NamedTuple):
    """The result of `Calibrator.look`, for `Calibrator.add`; "long" rows exceed the layer's least effective k.

    Attributes:
        layer: index of the layer.
        rows: number of rows looked at, including dense ones.
        buckets: int64 [N], length buckets of the long rows.
        thresholds: for each k the rows' own thresholds, float32 [Hq, n], and their buckets, int64 [n] (algorithm1).
        sketch: sketch of the long rows' elements, with the numbers of its buckets (pooled).
    """

    layer: int
    rows: int
    buckets: Integers
    thresholds: Sequence[tuple[NDArray[np.float32], Integers]] = ()
    sketch: tuple[SurvivalSketch, Integers] | None = None


def look(
    settings: CalibrationSettings, knots: Sequence[int], layer: int, blocks: ScoreBlocks, learnable_sink: Tensor | None
) -> Observation:
    """Do the work of `Calibrator.look`."""
    targets = settings.targets(layer)
    long = blocks.longer_than(targets[0])
    buckets = bucket_of(long.lengths, knots)
    found = Observation(layer, len(blocks.lengths), buckets.numpy())
    if not len(buckets):
        return found
    denominators = partial(_denominators, learnable_sink) if settings.placement == "post_softmax" else None
    if settings.estimator == "pooled":
        return found._replace(sketch=SurvivalSketch.of(long, found.buckets, denominators))
    ranked = _ranked(long, targets, denominators)
    return found._replace(thresholds=_thresholds_of(settings, layer, ranked, buckets, long.lengths))


def _denominators(learnable_sink: Tensor | None, scores: Tensor) -> Tensor:
    # the sink may be a parameter, and each thread has its own switch for gradients
    return log_sum_exp(scores[None], learnable_sink)[0].detach().unsqueeze(-1)


def _ranked(blocks: ScoreBlocks, ranks: Sequence[int], denominators: Denominators | None) -> Tensor:
    """Find the rows' (k+1)-th largest scores or log-probabilities for all ``ranks`` k: [Hq, rows, K], on the CPU."""
    parts = []
    for rows, scores in blocks:
        found = kth_largest(scores, ranks) if blocks.ranked is None else blocks.ranked[:, rows]
        # The softmax keeps the order, so only these few elements of a row are divided.
        parts.append(found if denominators is None else found - denominators(scores))
    return torch.cat(parts, 1).cpu()


def _thresholds_of(
    settings: CalibrationSettings, layer: int, ranked: Tensor, buckets: Tensor, lengths: Tensor
) -> list[tuple[NDArray[np.float32], Integers]]:
    """For each k, choose the rows' own thresholds that are not dense; [Hq, rows, K] scores or log-probabilities."""
    values = ranked.exp() if settings.placement == "post_softmax" else ranked
    found = []
    for own, target in zip(values.unbind(-1), settings.targets(layer), strict=True):
        chosen = lengths > target
        found.append((own[:, chosen].numpy(), buckets[chosen].numpy()))
    return found


def check_rows(settings: CalibrationSettings, layer: int, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Move scores and lengths to the CPU. Raise a typed error if `Calibrator.observe` does not take them."""
    if not 0 <= layer < settings.num_layers:
        raise TopThetaValueError("layer", f"0 to {settings.num_layers - 1}", str(layer))
    if scores.dtype != torch.float32:
        raise TopThetaTypeError("scores", "float32", str(scores.dtype), "compute the scores in float32")
    if lengths.dtype not in (torch.int32, torch.int64):
        raise TopThetaTypeError("lengths", "int64", str(lengths.dtype))
    if lengths.ndim != 1 or scores.ndim != 3 or scores.shape[:2] != (settings.num_heads, len(lengths)):
        want = f"shape [{settings.num_heads}, rows, S] with lengths [rows]"
        got = f"{tuple(scores.shape)} with {tuple(lengths.shape)}"
        raise TopThetaValueError("scores", want, got)
    scores, lengths = scores.detach().cpu(), lengths.detach().cpu().to(torch.int64)
    if len(lengths) and int(lengths.max()) > settings.longest:
        remedy = "pass a larger longest to Calibrator"
        raise TopThetaValueError("lengths", f"at most {settings.longest}", str(int(lengths.max())), remedy)
    # All heads share the mask, so one shows whether it agrees with the lengths.
    visible = np.count_nonzero(scores[0].numpy() != -np.inf, axis=1)
    wrong = np.flatnonzero(visible != lengths.numpy())
    if len(wrong):
        row = int(wrong[0])
        got = f"{int(visible[row])} elements above -inf in row {row} of length {int(lengths[row])}"
        raise TopThetaValueError("scores", "-inf in exactly the invisible places", got)
    return scores, lengths
