"""Collects statistics of attention rows from forward passes and turns them into a table of thresholds."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import TopThetaValueError, shown
from ..thresholds import ThresholdTable
from ..thresholds.knots import Integers
from .assembly import Statistics, assemble, check_complete
from .blocks import ScoreBlocks, ScoresAtHand
from .moments import Moments
from .observation import Observation, check_rows, look
from .settings import CalibrationSettings
from .sketch import SurvivalSketch


class Calibrator:
    """Calibrate thresholds from attention scores (paper, Algorithm 1 and multi-k calibration).

    Feed every layer's scores of the calibration sequences to :meth:`observe`, then call :meth:`finish`.
    Memory does not grow with the number of sequences.

    Example:
        >>> import torch
        >>> calibrator = Calibrator(CalibrationSettings(
        ...     num_layers=1, num_heads=2, k=[8], longest=64, layer_k=[0], placement="pre_softmax"))
        >>> scores = torch.randn(2, 100, 64, generator=torch.Generator().manual_seed(0))
        >>> calibrator.observe(0, scores, torch.full((100,), 64))
        >>> table = calibrator.finish(fingerprint="demo", provenance={"text": "noise"})
        >>> kept = scores > table.at(8).theta[0][64][:, None, None]
        >>> 7 < kept.sum() / 200 < 8.5
        tensor(True)
    """

    def __init__(self, settings: CalibrationSettings) -> None:
        self.settings = settings
        self._knots = settings.knots()
        layers, shape = range(settings.num_layers), (settings.num_heads, len(self._knots))
        pooled = settings.estimator == "pooled"
        self._sketches = [SurvivalSketch(*shape) for _ in layers] if pooled else []
        self._moments = [] if pooled else [[Moments(shape) for _ in settings.k] for _ in layers]
        self._counts: Integers = np.zeros((len(layers), len(self._knots)), dtype=np.int64)
        self._observed: Integers = np.zeros(len(layers), dtype=np.int64)

    def observe(self, layer: int, scores: Tensor, lengths: Tensor) -> None:
        """Add rows of one layer. Rows up to an effective k do not count for it: they are dense.

        Args:
            layer: index of the layer.
            scores: float32 [Hq, rows, S], any device: scaled scores, -inf outside the visible range.
            lengths: int64 [rows]: the number of visible elements of each row.

        Raises:
            TopThetaTypeError: a dtype is wrong.
            TopThetaValueError: shapes do not fit, a length exceeds ``longest`` or disagrees with the
                visible elements, or a score is NaN or +inf.
        """
        self.add(self.look(layer, ScoresAtHand(*check_rows(self.settings, layer, scores, lengths))))

    def look(self, layer: int, blocks: ScoreBlocks, learnable_sink: Tensor | None = None) -> Observation:
        """Compute what :meth:`observe` would add, without adding it. Several threads may do so at once.

        Args:
            layer: as in :meth:`observe`.
            blocks: scores and lengths as in :meth:`observe`; they are not checked.
            learnable_sink: float32 [Hq], on the device of the scores: one more logit of every row, which takes part of
                the probability.

        Raises:
            TopThetaValueError: a score is NaN or +inf.
        """
        return look(self.settings, self._knots, layer, blocks, learnable_sink)

    def add(self, seen: Observation) -> None:
        """Add the result of :meth:`look`.

        Raises:
            TopThetaValueError: a row's own threshold is not finite, or a counter of a sketch would overflow.
        """
        self._observed[seen.layer] += seen.rows
        if len(seen.buckets) == 0:
            return
        if seen.sketch is not None:
            self._sketches[seen.layer].merge(*seen.sketch)
        for place, (values, buckets) in enumerate(seen.thresholds):
            self._moments[seen.layer][place].update(values, buckets)
        np.add.at(self._counts[seen.layer], seen.buckets, 1)

    def finish(self, *, fingerprint: str, provenance: Mapping[str, str]) -> ThresholdTable:
        """Make the table of thresholds. You may observe more rows afterwards, and make a new table.

        Length knots without nearby rows are dropped. Knots that only some layers lack are filled from their
        neighbours, with a count of 0. Layers whose effective k exceeds every row are dense.

        Args:
            fingerprint: fingerprint of the model.
            provenance: origin of the rows; row fraction, seed and Python version are added.

        Raises:
            TopThetaValueError: a layer was never observed, or no row was longer than some k.
        """
        check_complete(self.settings, self._observed, self._counts)
        own = {
            "row_fraction": str(self.settings.row_fraction),
            "seed": str(self.settings.seed),
            "python": platform.python_version(),
        }
        return assemble(self.settings, self._counts, self._statistics(), fingerprint, {**own, **provenance})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the collected statistics by name: the calibrator's own arrays, which change with the next rows."""
        found = {"counts": self._counts, "observed": self._observed}
        statistics = {f"sketch.{layer}": sketch for layer, sketch in enumerate(self._sketches)} | {
            f"moments.{layer}.{place}": moments
            for layer, by_k in enumerate(self._moments)
            for place, moments in enumerate(by_k)
        }
        for owner, statistic in statistics.items():
            found |= {f"{owner}.{name}": array for name, array in vars(statistic).items()}
        return found

    def fill(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Resume from the :meth:`arrays` of a calibrator with the same settings.

        Raises:
            TopThetaValueError: the arrays do not fit these settings.

        Example:
            >>> import torch
            >>> settings = CalibrationSettings(num_layers=1, num_heads=2, k=[8], longest=64, layer_k=[0])
            >>> calibrator, again = Calibrator(settings), Calibrator(settings)
            >>> calibrator.observe(0, torch.randn(2, 100, 64), torch.full((100,), 64))
            >>> again.fill(calibrator.arrays())
            >>> table, same = (each.finish(fingerprint="demo", provenance={}) for each in (calibrator, again))
            >>> torch.equal(table.theta, same.theta)
            True
        """
        own = self.arrays()
        wanted, given = ({name: (each.dtype, each.shape) for name, each in those.items()} for those in (own, arrays))
        if different := sorted(name for name in {**wanted, **given} if wanted.get(name) != given.get(name)):
            raise TopThetaValueError("arrays", "those of a calibrator with these settings", f"other {shown(different)}")
        for name, array in own.items():
            np.copyto(array, arrays[name])

    def _statistics(self) -> Statistics:
        if self.settings.estimator == "pooled":
            pooled = [sketch.thetas(self.settings.targets(layer)) for layer, sketch in enumerate(self._sketches)]
            theta = np.array(pooled).swapaxes(0, 1)
            # sketches hold log-probabilities after the softmax
            theta = np.exp(theta) if self.settings.placement == "post_softmax" else theta
            return Statistics(theta, np.zeros_like(theta))
        by_k = list(zip(*self._moments, strict=True))
        mean = np.array([[moments.mean for moments in layers] for layers in by_k])
        std = np.array([[moments.std() for moments in layers] for layers in by_k])
        return Statistics(mean + self.settings.alpha * std, std)
