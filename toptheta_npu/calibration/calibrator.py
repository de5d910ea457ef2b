"""Collects what a forward pass shows of the attention rows and turns it into a table of thresholds."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import TopThetaValueError, shown
from ..thresholds import Estimator, Placement, ThresholdTable
from ..thresholds.knots import Integers
from .arrays import Arrays, Statistic, arrays_of, fill, named, take
from .assembly import Statistics, assemble, check_complete
from .moments import Moments
from .observation import Observation, check_rows, look
from .on_device import ScoreBlocks, look_through
from .settings import CalibrationSettings, default_layer_k
from .sketch import SurvivalSketch


class Calibrator:
    """Calibrate thresholds from attention scores (paper, Algorithm 1 and multi-k calibration).

    Feed every layer's scores of the calibration sequences to :meth:`observe`, then call :meth:`finish`.
    What is stored does not grow with the number of sequences.

    Args:
        num_layers: layers of the model.
        num_heads: query heads per layer, Hq.
        k: the numbers of elements to keep for which thresholds are wanted, any order.
        longest: the longest row that will be fed.
        placement: ``"pre_softmax"``, theta in units of the scaled score, or ``"post_softmax"``, a
            probability.
        estimator: ``"algorithm1"`` averages every row's own threshold; ``"pooled"`` keeps exactly k
            elements per row on average over the calibration rows.
        alpha: standard deviations added to the average (algorithm1 only).
        layer_k: the least k of every layer, 0 for none; None: 512 in the first two layers, as in the paper.
        row_fraction: the share of rows that :meth:`rows_to_observe` picks.
        seed: of that choice.
        dense_layers: layers that need not be observed and get no thresholds, such as sliding-window ones.

    Raises:
        TopThetaTypeError: a k is not an int.
        TopThetaValueError: an argument is unusable, or no row can be longer than any k.

    Example:
        >>> import torch
        >>> calibrator = Calibrator(1, 2, k=[8], longest=64, layer_k=[0], placement="pre_softmax")
        >>> scores = torch.randn(2, 100, 64, generator=torch.Generator().manual_seed(0))
        >>> calibrator.observe(0, scores, torch.full((100,), 64))
        >>> table = calibrator.finish(fingerprint="demo", provenance={"text": "noise"})
        >>> kept = scores > table.at(8).theta[0][64][:, None, None]
        >>> 7 < kept.sum() / 200 < 8.5
        tensor(True)
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        *,
        k: Sequence[int],
        longest: int,
        placement: Placement = "post_softmax",
        estimator: Estimator = "algorithm1",
        alpha: float = 0.1,
        layer_k: Sequence[int] | None = None,
        row_fraction: float = 1.0,
        seed: int = 0,
        dense_layers: Sequence[int] = (),
    ) -> None:
        self.settings = CalibrationSettings(
            num_layers=num_layers,
            num_heads=num_heads,
            k=k,
            longest=longest,
            placement=placement,
            estimator=estimator,
            alpha=alpha if estimator == "algorithm1" else 0.0,
            layer_k=default_layer_k(num_layers) if layer_k is None else layer_k,
            row_fraction=row_fraction,
            seed=seed,
            dense_layers=dense_layers,
        )
        self._knots = self.settings.knots()
        shape = (num_heads, len(self._knots))
        pooled = estimator == "pooled"
        self._sketches = [SurvivalSketch(*shape) for _ in range(num_layers if pooled else 0)]
        self._moments = [[Moments(shape) for _ in self.settings.k] for _ in range(0 if pooled else num_layers)]
        self._counts: Integers = np.zeros((num_layers, len(self._knots)), dtype=np.int64)
        self._observed: Integers = np.zeros(num_layers, dtype=np.int64)

    def rows_to_observe(self, count: int, sequence_index: int) -> Tensor:
        """Choose the rows of one sequence to calibrate on. Call once per sequence, and use for all layers and heads.

        Depends on the seed and ``sequence_index`` alone, so shards choose what a single process would.

        Args:
            count: rows of the sequence.
            sequence_index: its number in the whole calibration set.

        Returns:
            int64 [chosen], ascending.
        """
        return self.settings.rows(count, sequence_index)

    def observe(self, layer: int, scores: Tensor, lengths: Tensor) -> None:
        """Add rows of one layer. Rows no longer than an effective k say nothing about it: they are dense.

        Args:
            layer: index of the layer.
            scores: float32 [Hq, rows, S], any device: scaled scores, -inf outside the visible range.
            lengths: int64 [rows]: the number of visible elements of each row.

        Raises:
            TopThetaTypeError: a dtype is wrong.
            TopThetaValueError: shapes do not fit, a length exceeds ``longest`` or disagrees with the
                visible elements, or a score is NaN or +inf.
        """
        self.add(self.look(layer, *check_rows(self.settings, layer, scores, lengths)))

    def look(
        self,
        layer: int,
        scores: Tensor,
        lengths: Tensor,
        ranked: Tensor | None = None,
        learnable_sink: Tensor | None = None,
    ) -> Observation:
        """Find what :meth:`observe` would add, without adding it. Any number of threads may look at once.

        Args:
            layer, scores, lengths: as in :meth:`observe`, taken as right.
            ranked: float32 [Hq, rows, K], if it is known: the rows' (k+1)-th largest scores, for every effective k of
                the layer in ascending order. The pooled estimator has no use for it.
            learnable_sink: float32 [Hq], one more logit of every row, which takes its part of the probability.

        Raises:
            TopThetaValueError: a score is NaN or +inf.
        """
        return look(self.settings, self._knots, layer, scores, lengths, ranked, learnable_sink)

    def look_through(self, layer: int, blocks: ScoreBlocks, learnable_sink: Tensor | None = None) -> Observation:
        """Find what :meth:`look` finds in some rows in all rows of a layer, on the device that holds their scores.

        Raises:
            TopThetaValueError: a score is NaN or +inf.
        """
        return look_through(self.settings, self._knots, layer, blocks, learnable_sink)

    def add(self, seen: Observation) -> None:
        """Add what :meth:`look` or :meth:`look_through` has found.

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

    def merge(self, other: Calibrator) -> None:
        """Add what ``other``, a shard of the same calibration, has seen.

        Raises:
            TopThetaValueError: the settings differ; the message names them.
        """
        for name in (field.name for field in dataclasses.fields(self.settings)):
            mine, theirs = getattr(self.settings, name), getattr(other.settings, name)
            if mine != theirs:
                raise TopThetaValueError("other", f"a calibrator with {name}={mine}", f"{name}={theirs}")
        for mine_layer, their_layer in zip(self._moments, other._moments, strict=True):
            for moments, more in zip(mine_layer, their_layer, strict=True):
                moments.merge(more)
        for sketch, more_rows in zip(self._sketches, other._sketches, strict=True):
            sketch.merge(more_rows)
        self._counts += other._counts
        self._observed += other._observed

    def finish(self, *, fingerprint: str, provenance: Mapping[str, str]) -> ThresholdTable:
        """Make the table of thresholds. More rows may be observed afterwards, and a new table made.

        Length knots that no row came near are dropped; those that only some layers lack are filled from
        their neighbours, with a count of 0. Layers whose effective k exceeds every row are dense.

        Args:
            fingerprint: of the model.
            provenance: where the rows came from; row fraction, seed and Python version are added.

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

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Give all that was gathered: what a JSON object can hold, and the arrays by name.

        The arrays are the calibrator's own: write them before more rows are observed.
        """
        arrays = {"counts": self._counts, "observed": self._observed, **arrays_of(self._gathered())}
        return {"settings": dataclasses.asdict(self.settings)}, arrays

    @classmethod
    def from_state(cls, about: Mapping[str, Any], arrays: Arrays) -> Calibrator:
        """Make the calibrator that :meth:`state` was taken of; it goes on as if it had never stopped.

        Raises:
            TopThetaTypeError, TopThetaValueError: this is no state of a calibrator; nothing of it is trusted.

        Example:
            >>> import torch
            >>> calibrator = Calibrator(1, 2, k=[8], longest=64, layer_k=[0], placement="pre_softmax")
            >>> calibrator.observe(0, torch.randn(2, 100, 64), torch.full((100,), 64))
            >>> again = Calibrator.from_state(*calibrator.state())
            >>> table, same = (each.finish(fingerprint="demo", provenance={}) for each in (calibrator, again))
            >>> torch.equal(table.theta, same.theta)
            True
        """
        settings, rest = CalibrationSettings(**about["settings"]), dict(arrays)
        expected = settings.num_layers * settings.num_heads * len(settings.knots())
        # before memory is taken for what the settings say
        if sum(array.size for array in rest.values()) < expected:
            raise TopThetaValueError("state", f"arrays of {expected} numbers and more", "fewer")
        calibrator = cls(**dataclasses.asdict(settings))
        calibrator._counts = take(rest, "counts", like=calibrator._counts)
        calibrator._observed = take(rest, "observed", like=calibrator._observed)
        fill(calibrator._gathered(), rest)
        if rest:
            raise TopThetaValueError("state", "no other arrays", shown(sorted(rest)))
        return calibrator

    def _gathered(self) -> dict[str, Statistic]:
        """Collect every statistic by its name in the state."""
        return {**named("moments", self._moments), **named("sketch", self._sketches)}

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
