"""Says how many elements the rows of a table aim at: one k for all, a share of the row, or a k for every head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import Setting, TopThetaCombinationError, TopThetaTypeError, TopThetaValueError, shown
from .checks import calibrated_with, check_dense
from .grid import ThresholdGrid
from .kinds import LARGEST_ONLY, MAX_LENGTH
from .knots import Integers

#: Elements to keep per row unless the caller says otherwise.
DEFAULT_K = 128

#: A k for every layer and query head, [L, Hq].
HeadK = Tensor | Sequence[Sequence[int]]
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class LayerAims:
    """Say what the rows of one layer aim at: by their length, or by their head.

    Attributes:
        rows: int64 [N], the elements that each row aims at, in all heads; None where it is by head.
        heads: int64 [Hq], those that each head aims at in all rows; None where it is by row.
        alone: bool [Hq], the heads of which a row keeps its largest element alone.
        dense_below: rows of fewer keys are dense.
    """

    rows: Integers | None
    heads: Integers | None
    alone: NDArray[np.bool_]
    dense_below: int = 0

    @classmethod
    def of_heads(cls, heads: Integers, alone: NDArray[np.bool_] | None = None, dense_below: int = 0) -> LayerAims:
        """Aim at ``heads`` [Hq] elements in rows of any length."""
        return cls(None, heads, np.zeros(len(heads), dtype=np.bool_) if alone is None else alone, dense_below)

    @property
    def least(self) -> int:
        """The fewest elements that a row aims at."""
        return int(min(aims.min() for aims in (self.rows, self.heads) if aims is not None))

    @property
    def dense_up_to(self) -> Integers:
        """The number of keys up to which a row is dense, by row and head: [N, 1] or [1, Hq]."""
        if self.rows is not None:
            return np.maximum(self.rows, self.dense_below - 1)[:, None]
        assert self.heads is not None
        return np.maximum(self.heads, self.dense_below - 1)[None]


@dataclass(frozen=True, eq=False)
class Target:
    """Say what rows aim at. Exactly one of ``k``, ``target_kept`` and ``head_k`` is given.

    Attributes:
        k: elements to keep, whatever the length, and at least the layer's ``layer_k``.
        target_kept: elements to keep as a share of the row's keys, rounded to the nearest number (half to even),
            and at least the smallest calibrated k and the layer's ``layer_k``.
        dense_below: rows of fewer keys are dense, also beyond the longest row with a threshold of its own.
        head_k: elements to keep in every layer and head, in place of ``layer_k``: int64 [L, Hq] on the CPU.
    """

    k: int | None = None
    target_kept: float | None = None
    dense_below: int = 0
    head_k: Tensor | None = None

    def check(self, table: ThresholdGrid, longest: int) -> None:
        """Raise a typed error unless ``table`` answers this for rows of up to ``longest`` keys."""
        given = [f"{name}={shown(value)}" for name, value in self._given() if value is not None]
        if not given:
            raise TopThetaValueError("k", "k, target_kept or head_k", "none of them", "pass one of them")
        if len(given) > 1:
            raise TopThetaCombinationError(given[0], "excludes", " and ".join(given[1:]), "pass one of them")
        if self.k is not None:
            table.layer_targets(self.k)
        elif self.head_k is not None:
            _check_budget(table, self.head_k)
        else:
            self._check_share(table, longest)
        if type(self.dense_below) is not int:
            raise TopThetaTypeError("dense_below", "an int", shown(self.dense_below))
        if not 0 <= self.dense_below <= MAX_LENGTH:
            raise TopThetaValueError("dense_below", f"0 to {MAX_LENGTH}", shown(self.dense_below))

    def _given(self) -> list[tuple[str, object]]:
        budget = None if self.head_k is None else self.head_k.tolist()
        return [("k", self.k), ("target_kept", self.target_kept), ("head_k", budget)]

    def _check_share(self, table: ThresholdGrid, longest: int) -> None:
        share = self.target_kept
        if type(share) not in (int, float):
            raise TopThetaTypeError("target_kept", "a number", shown(share))
        if share is None or not 0 < share < 1:
            raise TopThetaValueError("target_kept", "a share between 0 and 1", shown(share), "0.1 keeps a tenth")
        largest = int(table.k[-1])
        needed = int(np.rint(share * longest))
        if needed > largest:
            most = math.floor(1e4 * largest / longest) / 1e4
            within = int(largest / share)
            raise TopThetaValueError(
                "target_kept", f"at most {most} for rows of up to {longest} keys, k being calibrated up to {largest}",
                f"{shown(share)}, which needs k={needed}",
                (*calibrated_with(needed), f", or pass max_length={within}, beyond which rows use the thresholds of "
                 "that length"),
            )  # fmt: skip

    def aims(self, table: ThresholdGrid, layer: int, lengths: Integers) -> LayerAims:
        """Say what rows of ``lengths`` [N] aim at in ``layer``. The target has been checked."""
        if self.head_k is not None:
            heads = self.head_k[layer].numpy()
            return LayerAims.of_heads(heads, heads == LARGEST_ONLY, self.dense_below)
        least = table.layer_k[layer]
        if self.k is not None:
            heads = np.full(table.num_heads, max(self.k, least), dtype=np.int64)
            return LayerAims.of_heads(heads, dense_below=self.dense_below)
        assert self.target_kept is not None  # since the check
        share = np.rint(self.target_kept * lengths.astype(np.float64)).astype(np.int64)
        rows = np.maximum(np.clip(share, int(table.k[0]), int(table.k[-1])), least)
        return LayerAims(rows, None, np.zeros(table.num_heads, dtype=np.bool_), self.dense_below)


def checked_head_k(head_k: object) -> Tensor | None:
    """Copy a budget to the CPU as int64 [L, Hq]; None stays None.

    Raises:
        TopThetaTypeError: it is neither a tensor of integers nor a list of lists of ints.
        TopThetaValueError: it has not two dimensions.
    """
    wanted, remedy = "integers [layers, heads]", "pass an int64 tensor, or a list of ints for every layer"
    if head_k is None:
        return None
    if isinstance(head_k, Tensor):
        check_dense("head_k", head_k)
        if head_k.dtype not in _INTEGERS:
            raise TopThetaTypeError("head_k", wanted, str(head_k.dtype), remedy)
        found = head_k.detach().to("cpu", torch.int64, copy=True)
    else:
        if not _is_nested(head_k):
            raise TopThetaTypeError("head_k", wanted, shown(head_k), remedy)
        try:
            found = torch.tensor(head_k, dtype=torch.int64, device="cpu")
        # lists of different lengths, and numbers beyond int64
        except (ValueError, RuntimeError, OverflowError) as error:
            raise TopThetaValueError("head_k", wanted, str(error).split("\n")[0], remedy) from error
    if found.ndim != 2:
        raise TopThetaValueError("head_k", wanted, f"shape {tuple(found.shape)}", remedy)
    return found.contiguous()


def _is_nested(head_k: object) -> bool:
    """Tell whether this is a list or tuple of lists or tuples of ints."""
    return isinstance(head_k, (list, tuple)) and all(
        isinstance(layer, (list, tuple)) and all(type(k) is int for k in layer) for layer in head_k
    )


def _check_budget(table: ThresholdGrid, head_k: Tensor) -> None:
    shape = (table.num_layers, table.num_heads)
    if tuple(head_k.shape) != shape:
        raise TopThetaValueError("head_k", f"shape {shape}, layers and heads", str(tuple(head_k.shape)))
    targets = table.calibrated_targets
    low, high = targets[0][:, None], targets[-1][:, None]
    wrong = ((head_k < low) | (head_k > high)) & (head_k != LARGEST_ONLY)
    if not bool(wrong.any()):
        return
    layer, head = wrong.nonzero()[0].tolist()
    k, least, most = int(head_k[layer, head]), int(low[layer]), int(high[layer])
    remedy = calibrated_with(k)
    if 0 < k < table.calibrated_layer_k[layer]:
        every = Setting("below_layer_k", True)
        remedy = (f"calibrate with layer_k={k} or less in layer {layer}, or with ", every)
    raise TopThetaValueError(
        f"head_k[{layer}, {head}]", f"{least} to {most}, the calibrated range of the layer, or 1 for the largest alone",
        str(k), remedy,
    )  # fmt: skip
