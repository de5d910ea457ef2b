"""Looks at the rows of a layer on the device that holds their scores; what comes to the host is small.

A CPU has passes of its own over all elements (`observation`, `counting`). Here the scores of a layer are gone over
block by block by tensor operations, and nothing waits for the device but the copies at the end of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..fallback.reference import log_sum_exp
from ..thresholds.knots import bucket_of
from .bins import BINS, COUNTERS, MINIMUM_EXPONENT
from .observation import Observation, thresholds_of
from .settings import CalibrationSettings
from .sketch import SurvivalSketch, bins_of_rows, check_ends, ends_of_cells


class ScoreBlocks(Protocol):
    """The scores of ascending rows of one layer, as often as they are asked for.

    Attributes:
        lengths: int64 [rows], the keys of each row, on the CPU.
    """

    lengths: Tensor

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield which rows, and their scores, float32 [Hq, n, S], -inf where hidden; one block after the other."""

    def longer_than(self, length: int) -> ScoreBlocks:
        """Take the rows of more than ``length`` keys alone."""

    def to_device(self, values: np.ndarray) -> Tensor:
        """Copy ``values`` to where the scores are."""


def look_through(
    settings: CalibrationSettings, knots: Sequence[int], layer: int, blocks: ScoreBlocks, learnable_sink: Tensor | None
) -> Observation:
    """Do for all chosen rows of a layer what `observation.look` does for some rows on a CPU.

    Raises:
        TopThetaValueError: a score is NaN or +inf.
    """
    targets = settings.targets(layer)
    long = blocks.longer_than(targets[0])
    buckets = bucket_of(long.lengths, knots)
    found = Observation(layer, len(blocks.lengths), buckets.numpy())
    if not len(long.lengths):
        return found
    post = settings.placement == "post_softmax"
    if settings.estimator == "pooled":
        return found._replace(sketch=_sketch(long, buckets.numpy(), post, learnable_sink))
    ranked = _ranked(long, targets, post, learnable_sink)
    return found._replace(thresholds=thresholds_of(settings, layer, ranked, buckets, long.lengths))


def _values(scores: Tensor, post: bool, learnable_sink: Tensor | None) -> Tensor:
    """Give the scores, or the logarithms of their probabilities."""
    return scores - log_sum_exp(scores[None], learnable_sink)[0].unsqueeze(-1) if post else scores


def _sketch(
    blocks: ScoreBlocks, buckets: np.ndarray, post: bool, learnable_sink: Tensor | None
) -> tuple[SurvivalSketch, np.ndarray]:
    """Sketch the elements: one pass for the ranges, from which the host chooses bins, and one that counts."""
    present, local, rows = np.unique(buckets, return_inverse=True, return_counts=True)
    ends = []
    for _, scores in blocks:
        values = _values(scores, post, learnable_sink)
        low = torch.where(values == -torch.inf, torch.inf, values).amin(-1)
        ends.append(torch.stack([low, values.amax(-1)]))
    low, high = torch.cat(ends, -1).cpu().numpy()
    check_ends(low, high)
    made = SurvivalSketch(len(low), len(present))
    made.rows += rows
    made.smallest, made.largest = ends_of_cells(low, high, local)
    made.set_counts(_counted(blocks, made, local, post, learnable_sink))
    return made, present


def _counted(
    blocks: ScoreBlocks, sketch: SurvivalSketch, cells: np.ndarray, post: bool, learnable_sink: Tensor | None
) -> np.ndarray:
    """Count the elements of every cell by bins: int64 [H, P, 112]. `counting.count` says why this is exact."""
    scale, first, cell = bins_of_rows(sketch.smallest, sketch.largest, cells)
    by_row = blocks.to_device(np.stack([scale, first, cell * COUNTERS + 1.0]).astype(np.float32))
    finest, wide = 2.0**-MINIMUM_EXPONENT, bool((scale < 1).any())
    heads, count = sketch.smallest.shape
    counts = torch.zeros(heads * count * COUNTERS, dtype=torch.int32, device=by_row.device)
    one = torch.ones((), dtype=torch.int32, device=by_row.device)
    for rows, scores in blocks:
        values = _values(scores, post, learnable_sink)
        scales, lowest, places = by_row[:, :, rows, None]
        index = (values * finest).floor_() * (scales / finest) if wide else values * scales
        # clamped above, too: a pass that rounds otherwise than the one before must not count in another cell
        index = index.floor_().sub_(lowest).clamp_(-1.0, BINS - 1.0).add_(places).to(torch.int64).flatten()
        counts.scatter_add_(0, index, one.expand(len(index)))
    return counts.cpu().numpy().astype(np.int64).reshape(heads, count, COUNTERS)[..., 1:]


def _ranked(blocks: ScoreBlocks, ranks: Sequence[int], post: bool, learnable_sink: Tensor | None) -> Tensor:
    """Find the (k+1)-th largest of every row for all ``ranks`` k: float32 [Hq, rows, K] on the CPU."""
    parts = []
    for _, scores in blocks:
        values = _values(scores, post, learnable_sink)
        top = values.topk(min(max(ranks) + 1, values.shape[-1]), dim=-1).values
        nothing = torch.full_like(top[..., 0], -torch.inf)
        found = [top[..., k] if k < top.shape[-1] else nothing for k in ranks]
        parts.append(torch.stack([top[..., 0], *found], -1))
    largest, *found = torch.cat(parts, 1).cpu().unbind(-1)
    check_ends(np.zeros(()), largest.numpy())
    return torch.stack(found, -1)
