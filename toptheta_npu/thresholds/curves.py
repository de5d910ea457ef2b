"""What every head loses at every k, and what budgets of all heads together lose and read: measured, not assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .kinds import MAX_LENGTH

DTYPES = {
    "lengths": torch.int64,
    "counts": torch.int64,
    "error": torch.float32,
    "price": torch.float64,
    "path_error": torch.float32,
    "path_value_rows": torch.float32,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class ErrorCurves:
    """Squared errors of a model's attention output under the thresholds of a table, checked at construction.

    An error is that of what a layer adds to the residual stream: the output after compensation, through the output
    projection, against the dense one. It is relative to the residual stream behind the layer, of the dense model, so
    that errors of different layers can be added. The price of an element is what a budget may lose in squared error to
    keep one less: the path holds budgets from a high price to a low one, each measured with all heads of a layer
    together.

    Attributes:
        lengths: int64 [C], ascending row lengths at which the rows were looked at.
        counts: int64 [C], rows behind each, in every layer.
        error: float32 [1 + K, L, Hq, C], mean squared error of a head alone: with its largest element only, then at
            the k of the table; 0 in layers that are always dense.
        price: float64 [P], descending.
        path_error: float32 [P, L, C], mean squared error of all heads of a layer together.
        path_value_rows: float32 [P, L, Hkv, C], mean V rows that a KV head needs, 0 in layers that are always dense.
        sdc: "exact" or "none", the softmax denominator compensation that was measured.
        vmc: whether the V-mean compensation was.

    Raises:
        TopThetaTypeError: a field has the wrong type.
        TopThetaValueError: shapes do not fit, knots do not ascend, or a number is negative or not finite.
    """

    lengths: Tensor
    counts: Tensor
    error: Tensor
    price: Tensor
    path_error: Tensor
    path_value_rows: Tensor
    sdc: str
    vmc: bool

    def __post_init__(self) -> None:
        _check_types(vars(self))
        _check_shapes(vars(self))
        _check_values(vars(self))
        for name in DTYPES:
            object.__setattr__(self, name, getattr(self, name).detach().to("cpu", copy=True).contiguous())

    @property
    def measured(self) -> Tensor:
        """Which layers are ever sparse, bool [L]."""
        return (self.path_value_rows > 0).any(dim=0).flatten(1).any(dim=1)

    def mean_error(self) -> Tensor:
        """Compute the mean squared error over layers, of every budget of the path at every length: float64 [P, C]."""
        return self.path_error[:, self.measured].double().mean(dim=1)

    def mean_value_rows(self) -> Tensor:
        """Compute the mean V rows of a step and KV head, of every budget at every length: float64 [P, C]."""
        return self.path_value_rows[:, self.measured].double().mean(dim=(1, 2))


def _check_types(fields: Mapping[str, Any]) -> None:
    for name, dtype in DTYPES.items():
        value = fields[name]
        if not isinstance(value, Tensor):
            raise TopThetaTypeError(f"curves.{name}", f"a {dtype} tensor", type(value).__name__)
        if value.dtype != dtype:
            raise TopThetaTypeError(f"curves.{name}", str(dtype), str(value.dtype))
    if fields["sdc"] not in ("exact", "none"):
        raise TopThetaValueError("curves.sdc", "'exact' or 'none'", shown(fields["sdc"]))
    if type(fields["vmc"]) is not bool:
        raise TopThetaTypeError("curves.vmc", "True or False", shown(fields["vmc"]))


def _check_shapes(fields: Mapping[str, Any]) -> None:
    if fields["error"].ndim != 4 or fields["path_value_rows"].ndim != 4:
        got = f"{fields['error'].ndim} and {fields['path_value_rows'].ndim}"
        raise TopThetaValueError("curves.error", "four dimensions, as path_value_rows", got)
    levels, layers, heads, lengths = fields["error"].shape
    path, kv_heads = fields["path_value_rows"].shape[0], fields["path_value_rows"].shape[2]
    shapes = {
        "lengths": (lengths,),
        "counts": (lengths,),
        "price": (path,),
        "path_error": (path, layers, lengths),
        "path_value_rows": (path, layers, kv_heads, lengths),
    }
    for name, want in shapes.items():
        if fields[name].shape != want:
            raise TopThetaValueError(f"curves.{name}", f"shape {want}", str(tuple(fields[name].shape)))
    if levels < 2 or path < 2 or not lengths or not kv_heads or heads % kv_heads:
        got = f"error {tuple(fields['error'].shape)}, path_value_rows {tuple(fields['path_value_rows'].shape)}"
        raise TopThetaValueError("curves", "two levels of k or more, two budgets or more, and heads in groups", got)


def _check_values(fields: Mapping[str, Any]) -> None:
    lengths, price = fields["lengths"], fields["price"]
    if lengths[0] < 1 or lengths[-1] > MAX_LENGTH or not bool((lengths[1:] > lengths[:-1]).all()):
        raise TopThetaValueError("curves.lengths", f"ascending numbers from 1 to {MAX_LENGTH}", shown(lengths.tolist()))
    if not bool((price[1:] < price[:-1]).all()):
        raise TopThetaValueError("curves.price", "descending numbers", shown(price.tolist()))
    for name in DTYPES:
        if not bool(((fields[name] >= 0) & (fields[name] < torch.inf)).all()):
            raise TopThetaValueError(f"curves.{name}", "finite numbers of at least 0", "others")
    if not bool(fields["counts"].any()):
        raise TopThetaValueError("curves.counts", "a row at some length", "none")
