"""Finds what some rows of one layer say about its thresholds, apart, so that threads may look at rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError
from ..fallback.reference import log_sum_exp
from ..thresholds.knots import Integers, bucket_of
from .row_statistics import kth_largest, take_rows
from .settings import CalibrationSettings
from .sketch import SurvivalSketch


class Observation(NamedTuple):
    """Hold what `Calibrator.look` has found, for `Calibrator.add`; "long" rows exceed the layer's least effective k.

    Attributes:
        layer: index of the layer.
        rows: rows looked at, dense ones too.
        buckets: int64 [N], of the long rows.
        thresholds: for each k the rows' own thresholds, float32 [Hq, n], and their buckets, int64 [n] (algorithm1).
        sketches: of the elements of the long rows (pooled), or for each k of the rows' own thresholds (quantile), with
            the numbers of the sketch's buckets.
    """

    layer: int
    rows: int
    buckets: Integers
    thresholds: list[tuple[NDArray[np.float32], Integers]]
    sketches: list[tuple[SurvivalSketch, Integers]]


def look(
    settings: CalibrationSettings, knots: Sequence[int], layer: int, scores: Tensor, lengths: Tensor,
    ranked: Tensor | None, learnable_sink: Tensor | None = None,
) -> Observation:  # fmt: skip
    """Do the work of `Calibrator.look`."""
    scores, lengths = scores.detach().cpu(), lengths.detach().cpu()
    targets = settings.targets(layer)
    long = (lengths > targets[0]).nonzero().flatten()
    long_lengths = lengths[long]
    buckets = bucket_of(long_lengths, knots)
    found = Observation(layer, len(lengths), buckets.numpy(), [], [])
    if len(long) == 0:
        return found
    scores = take_rows(scores, long)
    lse = None
    if settings.placement == "post_softmax":
        sink = None if learnable_sink is None else learnable_sink.detach().cpu()
        lse = log_sum_exp(scores[None], sink)[0].unsqueeze(-1)
    if settings.estimator == "pooled":
        found.sketches.append(SurvivalSketch.of(scores if lse is None else scores - lse, buckets))
        return found
    if ranked is None:
        ranked = kth_largest(scores.flatten(0, 1), targets).unflatten(0, scores.shape[:2])
    else:
        ranked = take_rows(ranked.detach().cpu(), long)
    # The softmax keeps the order, so only the one element per row is turned into a probability.
    add_ranked(settings, found, ranked if lse is None else ranked - lse, buckets, long_lengths, targets)
    return found


def add_ranked(
    settings: CalibrationSettings, found: Observation, ranked: Tensor, buckets: Tensor, lengths: Tensor,
    targets: Sequence[int],
) -> None:  # fmt: skip
    """Add the rows' own thresholds, float32 [Hq, rows, K], scores or logarithms of probabilities, to ``found``."""
    post = settings.placement == "post_softmax"
    for own, target in zip(ranked.unbind(-1), targets, strict=True):
        chosen = lengths > target
        values, places = own[:, chosen], buckets[chosen]
        if settings.estimator == "quantile":
            found.sketches.append(SurvivalSketch.of(values.unsqueeze(-1), places))
        else:
            found.thresholds.append(((values.exp() if post else values).numpy(), places.numpy()))


def check_rows(settings: CalibrationSettings, layer: int, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Bring scores and lengths to the CPU. Raise a typed error where they are not what `Calibrator.observe` takes."""
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
