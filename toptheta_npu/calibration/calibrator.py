"""Collects what a forward pass shows of the attention rows and turns it into a table of thresholds."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._checks import check_choice
from ..errors import TopThetaTypeError, TopThetaValueError, shown
from ..thresholds import DiscardedStatistic, Estimator, Placement, ThresholdTable
from ..thresholds.checks import DISCARDED_STATISTICS
from ..thresholds.knots import Integers, bucket_of
from .arrays import Arrays, Statistic, arrays_of, fill, named, take
from .assembly import Statistics, assemble, check_complete
from .discarded import DiscardedMass
from .moments import Moments
from .row_statistics import kth_largest, sample_rows
from .settings import CalibrationSettings, default_layer_k
from .sketch import SurvivalSketch


class Calibrator:
    """Calibrates thresholds from attention scores (paper, Algorithm 1 and multi-k calibration).

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
        >>> calibrator = Calibrator(1, 2, k=[8], longest=64, layer_k=[0])
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
        placement: Placement = "pre_softmax",
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
        self._moments: list[list[Moments]] = []
        self._sketches: list[SurvivalSketch] = []
        for _ in range(num_layers):
            if estimator == "pooled":
                self._sketches.append(SurvivalSketch(*shape))
            else:
                self._moments.append([Moments(shape) for _ in self.settings.k])
        self._counts: Integers = np.zeros((num_layers, len(self._knots)), dtype=np.int64)
        self._observed: Integers = np.zeros(num_layers, dtype=np.int64)
        self._discarded: DiscardedMass | None = None

    def rows_to_observe(self, count: int, sequence_index: int) -> Tensor:
        """The rows of one sequence to calibrate on: call once per sequence, use for all layers and heads.

        Depends on the seed and ``sequence_index`` alone, so shards choose what a single process would.

        Args:
            count: rows of the sequence.
            sequence_index: its number in the whole calibration set.

        Returns:
            int64 [chosen], ascending.
        """
        digest = hashlib.sha256(f"{self.settings.seed}:{sequence_index}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return sample_rows(count, self.settings.row_fraction, generator)

    def observe(self, layer: int, scores: Tensor, lengths: Tensor) -> None:
        """Adds rows of one layer. Rows no longer than an effective k say nothing about it: they are dense.

        Args:
            layer: index of the layer.
            scores: float32 [Hq, rows, S], any device: scaled scores, -inf outside the visible range.
            lengths: int64 [rows]: the number of visible elements of each row.

        Raises:
            TopThetaTypeError: a dtype is wrong.
            TopThetaValueError: shapes do not fit, a length exceeds ``longest`` or disagrees with the
                visible elements, or a score is NaN or +inf.
        """
        scores, lengths = self._checked(layer, scores, lengths)
        self._observed[layer] += len(lengths)
        targets = self.settings.targets(layer)
        long = (lengths > targets[0]).nonzero().flatten()
        if len(long) == 0:
            return
        scores, lengths = _take_rows(scores, long), lengths[long]
        buckets = bucket_of(lengths, self._knots)
        if self.settings.estimator == "pooled":
            if self.settings.placement == "post_softmax":
                scores = scores - scores.logsumexp(dim=-1, keepdim=True)
            self._sketches[layer].update(scores, buckets)
        else:
            ranked = self._row_thresholds(scores, targets)
            for index, target in enumerate(targets):
                chosen = (lengths > target).numpy()
                self._moments[layer][index].update(ranked[index][:, chosen], buckets.numpy()[chosen])
        np.add.at(self._counts[layer], buckets.numpy(), 1)

    def observe_discarded(self, layer: int, scores: Tensor, lengths: Tensor, table: ThresholdTable) -> None:
        """Adds rows to the second, optional pass: the exponential mass that ``table`` discards.

        Arguments and errors as in :meth:`observe`, and:

        Raises:
            TopThetaValueError: ``table`` does not belong to these settings, is not the table of the
                earlier calls, or is post-softmax, where the compensation is exact by construction.
        """
        if self._discarded is None:
            self._check_table(table)
            self._discarded = DiscardedMass(table)
        self._discarded.check_same(table)
        self._discarded.observe(layer, *self._checked(layer, scores, lengths))

    def with_discarded_mass(
        self, table: ThresholdTable, statistic: DiscardedStatistic = "geometric_mean"
    ) -> ThresholdTable:
        """``table`` with the discarded mass of the second pass.

        Args:
            table: as in :meth:`observe_discarded`.
            statistic: ``"geometric_mean"`` of the rows' masses, or their ``"mean"``, as in the paper.

        Raises:
            TopThetaValueError: no second pass over this table, none of its rows was long enough, or another
                statistic.
        """
        check_choice("statistic", statistic, DISCARDED_STATISTICS)
        if self._discarded is None:
            remedy = "call observe_discarded first"
            raise TopThetaValueError("table", "a table with a second pass over it", "none", remedy)
        self._discarded.check_same(table)
        mass = self._discarded.result(statistic)
        return dataclasses.replace(table, discarded_mass=mass, discarded_statistic=statistic)

    def merge(self, other: Calibrator) -> None:
        """Adds what ``other``, a shard of the same calibration, has seen.

        Raises:
            TopThetaValueError: the settings differ; the message names them.
        """
        for name in (field.name for field in dataclasses.fields(self.settings)):
            mine, theirs = getattr(self.settings, name), getattr(other.settings, name)
            if mine != theirs:
                raise TopThetaValueError("other", f"a calibrator with {name}={mine}", f"{name}={theirs}")
        if other._discarded is not None:
            if self._discarded is None:
                self._discarded = DiscardedMass(other._discarded.table)
            self._discarded.merge(other._discarded)
        for mine_layer, their_layer in zip(self._moments, other._moments, strict=True):
            for moments, more in zip(mine_layer, their_layer, strict=True):
                moments.merge(more)
        for sketch, more_rows in zip(self._sketches, other._sketches, strict=True):
            sketch.merge(more_rows)
        self._counts += other._counts
        self._observed += other._observed

    def finish(self, *, fingerprint: str, provenance: Mapping[str, str]) -> ThresholdTable:
        """The table of thresholds; more rows may be observed afterwards and a new table made.

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
        """All that was gathered: what a JSON object can hold, and the arrays by name.

        The arrays are the calibrator's own: write them before more rows are observed.
        """
        about: dict[str, Any] = {"settings": dataclasses.asdict(self.settings), "discarded": None}
        arrays = {"counts": self._counts, "observed": self._observed, **arrays_of(self._gathered())}
        if self._discarded is not None:
            about["discarded"], more = self._discarded.state()
            arrays |= more
        return about, arrays

    @classmethod
    def from_state(cls, about: Mapping[str, Any], arrays: Arrays) -> Calibrator:
        """The calibrator that :meth:`state` was taken of; it goes on as if it had never stopped.

        Raises:
            TopThetaTypeError, TopThetaValueError: this is no state of a calibrator; nothing of it is trusted.

        Example:
            >>> calibrator = Calibrator(1, 2, k=[8], longest=64, layer_k=[0])
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
        if about["discarded"] is not None:
            calibrator._discarded = DiscardedMass.from_state(about["discarded"], rest)
            calibrator._check_table(calibrator._discarded.table)
        if rest:
            raise TopThetaValueError("state", "no other arrays", shown(sorted(rest)))
        return calibrator

    def _gathered(self) -> dict[str, Statistic]:
        """Every statistic by its name in the state."""
        return {**named("moments", self._moments), **named("sketch", self._sketches)}

    def _statistics(self) -> Statistics:
        if self.settings.estimator == "pooled":
            return self._pooled_statistics()
        by_k = list(zip(*self._moments, strict=True))
        mean = np.array([[moments.mean for moments in layers] for layers in by_k])
        std = np.array([[moments.std() for moments in layers] for layers in by_k])
        return Statistics(mean + self.settings.alpha * std, std, None)

    def _pooled_statistics(self) -> Statistics:
        answers = [
            [sketch.theta(k) for k in self.settings.targets(layer)] for layer, sketch in enumerate(self._sketches)
        ]
        # [L, K, 3, Hq, R]: theta, k_low, k_high
        theta, *bracket = np.moveaxis(np.array(answers), (0, 1, 2), (2, 1, 0))
        if self.settings.placement == "post_softmax":
            theta = np.exp(theta)
        return Statistics(theta, np.zeros_like(theta), np.array(bracket))

    def _row_thresholds(self, scores: Tensor, targets: Sequence[int]) -> NDArray[np.float32]:
        """The (k+1)-th largest score or probability of every row: [K, Hq, rows]."""
        ranked = torch.stack([kth_largest(rows, targets) for rows in scores])
        if self.settings.placement == "post_softmax":
            # The softmax keeps the order, so only the one element per row is turned into a probability.
            ranked = torch.exp(ranked - scores.logsumexp(dim=-1, keepdim=True))
        values: NDArray[np.float32] = ranked.permute(2, 0, 1).numpy()
        return values

    def _checked(self, layer: int, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if not 0 <= layer < self.settings.num_layers:
            raise TopThetaValueError("layer", f"0 to {self.settings.num_layers - 1}", str(layer))
        if scores.dtype != torch.float32:
            raise TopThetaTypeError("scores", "float32", str(scores.dtype), "compute the scores in float32")
        if lengths.dtype not in (torch.int32, torch.int64):
            raise TopThetaTypeError("lengths", "int64", str(lengths.dtype))
        if lengths.ndim != 1 or scores.ndim != 3 or scores.shape[:2] != (self.settings.num_heads, len(lengths)):
            want = f"shape [{self.settings.num_heads}, rows, S] with lengths [rows]"
            got = f"{tuple(scores.shape)} with {tuple(lengths.shape)}"
            raise TopThetaValueError("scores", want, got)
        scores, lengths = scores.detach().cpu(), lengths.detach().cpu().to(torch.int64)
        if len(lengths) and int(lengths.max()) > self.settings.longest:
            remedy = "pass a larger longest to Calibrator"
            raise TopThetaValueError("lengths", f"at most {self.settings.longest}", str(int(lengths.max())), remedy)
        # All heads share the mask, so one shows whether it agrees with the lengths.
        visible = np.count_nonzero(scores[0].numpy() != -np.inf, axis=1)
        wrong = np.flatnonzero(visible != lengths.numpy())
        if len(wrong):
            row = int(wrong[0])
            got = f"{int(visible[row])} elements above -inf in row {row} of length {int(lengths[row])}"
            raise TopThetaValueError("scores", "-inf in exactly the invisible places", got)
        return scores, lengths

    def _check_table(self, table: ThresholdTable) -> None:
        if table.placement == "post_softmax":
            raise TopThetaValueError(
                "table",
                "pre_softmax thresholds",
                "post_softmax",
                "its compensation is exact without estimates",
            )
        mine = (self.settings.num_layers, self.settings.num_heads)
        theirs = (table.num_layers, table.num_heads)
        if mine != theirs:
            raise TopThetaValueError("table", "{} layers x {} heads".format(*mine), "{} x {}".format(*theirs))


def _take_rows(scores: Tensor, rows: Tensor) -> Tensor:
    """``scores[:, rows]`` for ascending ``rows``, without a copy where they are neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return scores[:, first : last + 1]
    return scores[:, rows]
