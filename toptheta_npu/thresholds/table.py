"""The public table of thresholds: look-up, fit, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._files import file_error
from ..errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from .at_k import ThresholdsAtK
from .file import read_table, save_table
from .fingerprint import differences
from .fit import ThresholdFit, fit_table
from .grid import ThresholdGrid
from .kinds import UNITS, Estimator, LookupForm, Placement
from .lookup import Lookup
from .targets import Target
from .text import read_sdc, read_text, write_sdc, write_text


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ThresholdTable(ThresholdGrid):
    """Thresholds at knots of k and of row length (paper, section 3.1), checked and fixed at construction.

    Tensors are copied to the CPU; treat them as read-only.

    Attributes:
        theta: float32 [K, L, Hq, R]. Pre-softmax in units of the scaled score (after RoPE and scale),
            post-softmax a probability. An element is kept when it is strictly greater; -inf is dense.
        k: int64 [K], ascending: the knots in elements kept per row.
        lengths: int64 [R], ascending, R <= 128, up to 2**24: the knots in row length.
        counts: int64 [L, Hq, R], number of calibration rows behind each knot; 0 if filled from neighbours.
        std: float32 [K, L, Hq, R], standard deviation of the rows' own thresholds (0 except for Algorithm 1).
        placement: ``"pre_softmax"`` or ``"post_softmax"``.
        estimator: ``"algorithm1"`` (mean of the rows' own thresholds) or ``"pooled"`` (k kept on average).
        alpha: number of standard deviations added to theta.
        layer_k: least k of each layer, 0 for none. Layer l keeps ``max(k, layer_k[l])`` elements, and ``theta[i, l]``
            was calibrated for ``max(k[i], layer_k[l])``.
        fingerprint: fingerprint of the calibrated model.
        provenance: description of the calibration data, str to str.
        discarded_mass: float32 [K, L, Hq, R] or None: the typical sum of exp over a row's discarded elements,
            relative to exp(row max), for ``sdc="offline"``.
        discarded_statistic: which mean "typical" is: ``"geometric_mean"``, or ``"mean"`` as in the paper; None: not
            known.
        key_cache_scale, value_cache_scale: float32 [L, Hkv, D], both or None: the quantisation step of symmetric 8-bit
            integers for every channel of a key and of a value.

    Raises:
        TopThetaTypeError: a tensor or header field has the wrong type.
        TopThetaValueError: shapes do not fit, knots do not ascend, or a number is NaN or out of range.

    Example:
        >>> table = ThresholdTable(
        ...     theta=torch.tensor([[[[0.5, 1.0]]]]), k=torch.tensor([4]), lengths=torch.tensor([8, 16]),
        ...     counts=torch.ones(1, 1, 2, dtype=torch.int64), std=torch.zeros(1, 1, 1, 2),
        ...     placement="pre_softmax", estimator="algorithm1", alpha=0.1, layer_k=[0], fingerprint="demo")
        >>> table
        ThresholdTable(pre_softmax, algorithm1, k=[4], 1 layers x 1 heads, lengths 8 to 16 (2 stored))
        >>> table.at(4).theta[0][torch.tensor([3, 8, 11, 99]).clamp(max=16)].flatten()
        tensor([  -inf, 0.5000, 0.7297, 1.0000])
    """

    def __repr__(self) -> str:
        return (
            f"ThresholdTable({self.placement}, {self.estimator}, k={self.k.tolist()}, "
            f"{self.num_layers} layers x {self.num_heads} heads, lengths {int(self.lengths[0])} to "
            f"{int(self.lengths[-1])} ({len(self.lengths)} stored))"
        )

    def at(
        self,
        k: int,
        *,
        dense_below: int = 0,
        device: torch.device | str = "cpu",
        max_length: int | None = None,
        lookup: LookupForm = "tabulated",
    ) -> ThresholdsAtK:
        """Look up the thresholds of one k, for every row length, on one device.

        Theta is linear in log k between k knots and in log n between length knots; post-softmax, log theta is linear.
        Rows up to the layer's effective k are dense (-inf). The result is rounded to float32, and exact at the knots.

        Args:
            k: elements to keep per row, within the calibrated knots.
            dense_below: rows of fewer keys are dense.
            device: device of the result.
            max_length: the last row length with a threshold of its own, up to 2**24; None: the longest calibrated.
            lookup: ``"tabulated"`` uses the calibrated thresholds; longer rows use the threshold of the longest
                calibrated length. ``"fitted"`` uses the function of :meth:`fit` at all lengths.

        Raises:
            TopThetaTypeError: ``k`` or ``dense_below`` has the wrong type.
            TopThetaValueError: ``k`` is outside the knots, another argument is unusable, or the thresholds of all
                lengths would take more than 32 GiB.

        Warns:
            ThresholdExtrapolationWarning: ``max_length`` exceeds the calibrated lengths.

        Example:
            >>> n = torch.tensor([64, 256, 1024])
            >>> table = ThresholdTable(
            ...     theta=torch.tensor([[[[2.0, 3.0, 4.0]]], [[[1.0, 2.0, 3.0]]]]), k=torch.tensor([16, 64]), lengths=n,
            ...     counts=torch.ones(1, 1, 3, dtype=torch.int64), std=torch.zeros(2, 1, 1, 3),
            ...     placement="pre_softmax", estimator="pooled", alpha=0.0, layer_k=[0], fingerprint="demo")
            >>> table.at(32).theta[0][n].flatten()
            tensor([2.0000, 2.5000, 3.5000])
            >>> table.at(32, dense_below=100).theta[0][n].flatten()
            tensor([  -inf, 2.5000, 3.5000])
        """
        prepared = Lookup(self, max_length, lookup)
        found = prepared.at(Target(k, dense_below), device)
        prepared.warn_beyond(stacklevel=2)
        return found

    def fit(self) -> ThresholdFit:
        """Fit theta as a function of the row length, by least squares weighted with the counts.

        Paper, "Threshold function fitting": pre-softmax c0 + c1/n + c2*log n, post-softmax
        log theta = c0 + c1*log n.

        Example:
            >>> n = torch.tensor([16, 32, 64, 128])
            >>> table = ThresholdTable(
            ...     theta=(2 - 8 / n).view(1, 1, 1, 4), k=torch.tensor([8]), lengths=n,
            ...     counts=torch.ones(1, 1, 4, dtype=torch.int64), std=torch.zeros(1, 1, 1, 4),
            ...     placement="pre_softmax", estimator="pooled", alpha=0.0, layer_k=[0], fingerprint="demo")
            >>> table.fit().predict(torch.tensor([1024])).item()
            1.9921875
        """
        return fit_table(self)

    def save(self, path: str | Path) -> None:
        """Write the table as a safetensors file, atomically; the same table gives the same bytes.

        A symbolic link and the mode of an existing file do not change.

        Raises:
            TopThetaTypeError: ``path`` is not a path.
            TopThetaValueError: the file cannot be written; an existing file does not change.
        """
        save_table(self, path)

    @classmethod
    def load(cls, path: str | Path, *, fingerprint: str | None = None) -> ThresholdTable:
        """Read a table that :meth:`save` wrote. Nothing is ever unpickled.

        Args:
            path: the file to read.
            fingerprint: fingerprint of the model to use the thresholds with; None: any.

        Raises:
            TopThetaTypeError: ``path`` is not a path.
            TopThetaValueError: the file is missing, unreadable, damaged, of another kind, schema or model.
        """
        header, tensors = read_table(path)
        if fingerprint is not None:
            _check_model(path, fingerprint, header["fingerprint"])
        fields: dict[str, Any] = {**header, **tensors}
        try:
            return cls(**fields)
        except (TopThetaError, TypeError) as error:  # TypeError: a tensor is missing, or none of a table
            raise file_error(path, "a valid threshold table", str(error), "calibrate again") from error

    def export_text(self, path: str | Path, k: int) -> None:
        """Write the thresholds of one k in the authors' th.txt format.

        Each length knot above the layer's effective k gets one line
        ``L<layer>_H<head>:<length> <threshold> <samples> <k>``, whose last column is the effective k.

        Raises:
            TopThetaTypeError: ``k`` is not an int.
            TopThetaValueError: ``k`` is outside the knots, or the file cannot be written.
        """
        write_text(self, path, k)

    def export_sdc_text(self, path: str | Path, k: int) -> None:
        """Write the discarded mass at one k in the authors' sdc.txt format.

        Each line of :meth:`export_text` gets one line ``L<layer>_H<head>:<length> <mass> <samples>``.

        Raises:
            TopThetaTypeError: ``k`` is not an int.
            TopThetaValueError: the table has no discarded mass, ``k`` is outside the knots, or the file cannot be
                written.
        """
        write_sdc(self, path, k)

    def with_sdc_text(self, path: str | Path) -> ThresholdTable:
        """Copy the table and add the discarded mass of the authors' sdc.txt, which is the mean of the rows' masses.

        Raises:
            TopThetaValueError: the table has several k; or a line is malformed, a duplicate or from another table, or a
                head has no line. The message gives the line number.
        """
        return dataclasses.replace(self, discarded_mass=read_sdc(path, self), discarded_statistic="mean")

    @classmethod
    def from_text(
        cls,
        path: str | Path,
        *,
        fingerprint: str,
        placement: Placement = "pre_softmax",
        estimator: Estimator = "algorithm1",
        alpha: float = 0.1,
        provenance: Mapping[str, str] | None = None,
    ) -> ThresholdTable:
        """Read the authors' th.txt, which holds one k per layer and does not record its origin.

        More than 128 row lengths are pooled into 128 knots. Each knot is the mean of its neighbourhood, weighted by the
        sample counts.

        Args:
            path: the file to read.
            fingerprint: fingerprint of the model that the thresholds belong to.
            placement: placement that they were calibrated for.
            estimator: estimator that they were calibrated with.
            alpha: number of standard deviations added to them.
            provenance: description of the calibration data.

        Raises:
            TopThetaValueError: a line is malformed or a duplicate, a layer has several k, or a layer or
                head has no line. The message gives the line number.
        """
        _check_placement(placement)
        fields = {**read_text(path, placement), "placement": placement, "estimator": estimator, "alpha": alpha}
        return cls(**fields, fingerprint=fingerprint, provenance=provenance or {})


def _check_placement(placement: str) -> None:
    if placement not in UNITS:
        raise TopThetaValueError("placement", f"one of {', '.join(UNITS)}", repr(placement))


def _check_model(path: str | Path, wanted: str, found: str) -> None:
    if not isinstance(wanted, str):
        raise TopThetaTypeError("fingerprint", "a str or None", type(wanted).__name__)
    different = differences(wanted, found)
    if not different:
        return
    remedy = "calibrate this model, or load the file that belongs to it"
    got = f"those of {found}, which differs in {' and '.join(different)}"
    raise file_error(path, f"thresholds of the model {wanted}", got, remedy)
