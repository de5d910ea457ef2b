"""The settings of a calibration, and the row lengths that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from .._checks import check_int
from ..errors import TopThetaTypeError, TopThetaValueError, shown
from ..thresholds import Estimator, Placement
from ..thresholds.checks import is_finite_number
from ..thresholds.kinds import MAX_LENGTH
from ..thresholds.knots import MAX_LENGTH_KNOTS, length_knots
from .row_statistics import rows_of_sequence

#: The paper keeps this many elements in each of the first two layers.
FIRST_LAYERS_K = (512, 512)

# Each calibrated k takes up to two length knots; at least half of the knots are left for the rest.
_MAX_TARGETS = MAX_LENGTH_KNOTS // 4


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """The settings of a calibration.

    Attributes:
        num_layers: number of layers of the model.
        num_heads: query heads per layer, Hq.
        k: numbers of elements to keep, one table entry each, in any order.
        longest: length of the longest row to observe.
        layer_k: least k of each layer, 0 for none.
        placement: ``"pre_softmax"``, theta in units of the scaled score, or ``"post_softmax"``, a probability.
        estimator: ``"algorithm1"`` averages every row's own threshold; ``"pooled"`` keeps exactly k elements per row
            on average over the calibration rows.
        alpha: standard deviations added to the average; 0 for the pooled estimator, which has none.
        row_fraction: fraction of the rows to sample.
        seed: seed of the row sample.
        dense_layers: layers that need not be observed and get no thresholds, such as sliding-window ones.

    Raises:
        TopThetaTypeError: a k is not an int.
        TopThetaValueError: a setting is unusable, or no row can be longer than any k.
    """

    num_layers: int
    num_heads: int
    k: Sequence[int]
    longest: int
    layer_k: Sequence[int]
    placement: Placement = "post_softmax"
    estimator: Estimator = "algorithm1"
    alpha: float = 0.1
    row_fraction: float = 1.0
    seed: int = 0
    dense_layers: Sequence[int] = ()

    def __post_init__(self) -> None:
        for name, most in (("num_layers", None), ("num_heads", None), ("longest", MAX_LENGTH)):
            check_int(name, getattr(self, name), 1, most)
        check_int("seed", self.seed, None)
        for name, choices in (("placement", get_args(Placement)), ("estimator", get_args(Estimator))):
            if getattr(self, name) not in choices:
                raise TopThetaValueError(name, f"one of {', '.join(choices)}", shown(getattr(self, name)))
        for name in ("alpha", "row_fraction"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise TopThetaTypeError(name, "a number", shown(value))
            if not is_finite_number(value):
                raise TopThetaValueError(name, "a finite number", shown(value))
        if not 0.0 < self.row_fraction <= 1.0:
            raise TopThetaValueError("row_fraction", "above 0 and at most 1", str(self.row_fraction))
        self._check_k()
        outside = sorted(set(self.dense_layers) - set(range(self.num_layers)))
        if outside:
            raise TopThetaValueError("dense_layers", f"layers 0 to {self.num_layers - 1}", str(outside))
        object.__setattr__(self, "dense_layers", tuple(sorted(set(self.dense_layers))))
        object.__setattr__(self, "k", tuple(sorted(self.k)))
        object.__setattr__(self, "layer_k", tuple(self.layer_k))
        if self.estimator == "pooled":
            object.__setattr__(self, "alpha", 0.0)

    def targets(self, layer: int) -> list[int]:
        """Return the effective k of a layer for every requested k, ascending."""
        return [max(k, self.layer_k[layer]) for k in self.k]

    def all_targets(self) -> list[int]:
        """Return every effective k of any layer, ascending, without repeats."""
        return sorted({max(k, floor) for k in self.k for floor in self.layer_k})

    def knots(self) -> list[int]:
        """Choose the row lengths of the calibration.

        Each calibrated k and its successor are knots: no bucket then holds both rows that are dense for
        that k and rows that are not.
        """
        first, *others = self.all_targets()
        edges = {knot for k in others if k < self.longest for knot in (k, k + 1)}
        return sorted(edges.union(length_knots(self.longest, first + 1, MAX_LENGTH_KNOTS - len(edges))))

    def rows(self, count: int, index: int) -> Tensor:
        """Sample the rows of sequence ``index``, which has ``count`` rows: int64 [chosen], ascending."""
        return rows_of_sequence(count, self.row_fraction, self.seed, index)

    def check_rows(self, counts: Iterable[int]) -> None:
        """Check, before a model runs, that the sample has rows for every k.

        Args:
            counts: number of rows of every sequence; reading stops once such a row is found.

        Raises:
            TopThetaValueError: ``row_fraction`` leaves out all rows that are long enough.
        """
        layers = (layer for layer in range(self.num_layers) if layer not in self.dense_layers)
        least = min((self.targets(layer)[-1] for layer in layers), default=0)
        longest = there = 0
        for index, count in enumerate(counts):
            longest = max(longest, *(self.rows(count, index)[-1:] + 1).tolist(), 0)
            there = max(there, count)
            if longest > least:
                return
        if there > least:
            got = f"{self.row_fraction}, with which {f'the longest has {longest}' if longest else 'there is none'}"
            wanted = f"a share that picks some row of more than {least} keys"
            raise TopThetaValueError("row_fraction", wanted, got, "raise it, or feed more sequences")

    def _check_k(self) -> None:
        for name, values, least in (("k", self.k, 1), ("layer_k", self.layer_k, 0)):
            if not isinstance(values, (list, tuple)):
                raise TopThetaTypeError(name, "a list or tuple of ints", shown(values))
            for value in values:
                check_int(name, value, least, MAX_LENGTH)
        if not self.k or len(set(self.k)) < len(self.k):
            raise TopThetaValueError("k", "one or more different numbers", str(list(self.k)))
        if len(self.layer_k) != self.num_layers:
            got = str(len(self.layer_k))
            raise TopThetaValueError("layer_k", f"{self.num_layers} numbers, one per layer", got)
        if len(self.all_targets()) > _MAX_TARGETS:
            got = str(len(self.all_targets()))
            remedy = "thresholds of other k are interpolated: ask for fewer"
            raise TopThetaValueError("k", f"at most {_MAX_TARGETS} different max(k, layer_k)", got, remedy)
        least = max(max(self.k), min(self.layer_k))
        if self.longest <= least:
            remedy = "feed longer rows, or lower k and layer_k"
            raise TopThetaValueError("longest", f"more than {least} (the largest k)", str(self.longest), remedy)


def default_layer_k(num_layers: int) -> Sequence[int]:
    """Return 512 for the first two layers, and 0 (no minimum) for the others."""
    return [*FIRST_LAYERS_K, *[0] * num_layers][:num_layers]
