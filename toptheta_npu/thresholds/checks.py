"""What a threshold table must satisfy, whether it was calibrated, loaded or put together by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import TopThetaTypeError, TopThetaValueError, shown
from .knots import MAX_LENGTH_KNOTS

if TYPE_CHECKING:
    from .table import ThresholdTable

#: The longest row, and the largest k: 16 Mi elements. A table keeps one row of numbers per length on the device.
MAX_LENGTH = 2**24
#: What the calibrated discarded mass of a cell is of its rows' masses.
DISCARDED_STATISTICS = ("geometric_mean", "mean")
#: Placement of the threshold test, and the unit of theta that goes with it.
UNITS = {"pre_softmax": "scaled score", "post_softmax": "probability"}
ESTIMATORS = ("algorithm1", "pooled", "quantile")
DTYPES = {
    "theta": torch.float32,
    "k": torch.int64,
    "lengths": torch.int64,
    "counts": torch.int64,
    "std": torch.float32,
    "discarded_mass": torch.float32,
    "bracket": torch.float32,
}
OPTIONAL = {"discarded_mass", "bracket"}


def check_table(table: ThresholdTable) -> None:
    """Raises a typed error for the first thing wrong with ``table``."""
    for name, dtype in DTYPES.items():
        value = getattr(table, name)
        if value is None and name in OPTIONAL:
            continue
        if not isinstance(value, Tensor):
            raise TopThetaTypeError(name, f"a {dtype} tensor", type(value).__name__)
        check_dense(name, value)
        if value.dtype != dtype:
            raise TopThetaTypeError(name, str(dtype), str(value.dtype))
    _check_header(table)
    _check_knots("k", table.k)
    _check_knots("lengths", table.lengths)
    if len(table.lengths) > MAX_LENGTH_KNOTS:
        raise TopThetaValueError("lengths", f"at most {MAX_LENGTH_KNOTS} knots", str(len(table.lengths)))
    _check_shapes(table)
    _check_values(table)


def check_dense(name: str, tensor: Tensor) -> None:
    """Raise a TopThetaTypeError unless the elements of ``tensor`` are at hand: neither sparse, nested nor meta."""
    if tensor.is_nested:
        raise TopThetaTypeError(name, "a dense tensor", "a nested one")
    if tensor.layout is not torch.strided:
        got = str(tensor.layout).removeprefix("torch.")
        raise TopThetaTypeError(name, "a dense tensor", f"layout {got}", f"pass {name}.to_dense()")
    if tensor.is_meta:
        remedy = "make it outside of torch.device('meta')"
        raise TopThetaTypeError(name, "a tensor with values", "one on the meta device", remedy)


def is_finite_number(value: object) -> bool:
    """Whether ``value`` is a number that a float64 can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_quantile(estimator: str, quantile: object) -> None:
    """Raises a typed error unless there is a quantile exactly where the estimator has one."""
    if estimator != "quantile":
        if quantile is not None:
            remedy = "leave it out, or pass estimator='quantile'"
            raise TopThetaValueError("quantile", f"None with estimator={estimator!r}", shown(quantile), remedy)
        return
    if not isinstance(quantile, (int, float)) or isinstance(quantile, bool):
        remedy = "pass 0.9 to keep at most k elements in nine rows out of ten"
        raise TopThetaTypeError("quantile", "a number with estimator='quantile'", shown(quantile), remedy)
    if not 0.0 < quantile < 1.0:
        raise TopThetaValueError("quantile", "a number above 0 and below 1", shown(quantile))


def _check_header(table: ThresholdTable) -> None:
    for name, choices in (("placement", tuple(UNITS)), ("estimator", ESTIMATORS)):
        if getattr(table, name) not in choices:
            raise TopThetaValueError(name, f"one of {', '.join(choices)}", shown(getattr(table, name)))
    check_quantile(table.estimator, table.quantile)
    if not is_finite_number(table.alpha):
        raise TopThetaValueError("alpha", "a finite number", shown(table.alpha))
    if not isinstance(table.layer_k, (list, tuple)):
        raise TopThetaTypeError("layer_k", "a list or tuple of ints", shown(table.layer_k))
    if not isinstance(table.provenance, Mapping):
        raise TopThetaTypeError("provenance", "a mapping of str to str", shown(table.provenance))
    for k in table.layer_k:
        if type(k) is not int or not 0 <= k <= MAX_LENGTH:
            raise TopThetaValueError("layer_k", f"an int from 0 to {MAX_LENGTH} per layer", shown(k))
    if not isinstance(table.fingerprint, str):
        raise TopThetaTypeError("fingerprint", "a str", type(table.fingerprint).__name__)
    for key, value in table.provenance.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TopThetaTypeError("provenance", "str to str", f"{shown(key)}: {shown(value)}", "convert with str()")
    _check_statistic(table)


def _check_statistic(table: ThresholdTable) -> None:
    statistic = table.discarded_statistic
    if statistic is not None and statistic not in DISCARDED_STATISTICS:
        expected = f"one of {', '.join(DISCARDED_STATISTICS)}, or None"
        raise TopThetaValueError("discarded_statistic", expected, shown(statistic))
    if statistic is not None and table.discarded_mass is None:
        raise TopThetaValueError("discarded_statistic", "None without discarded_mass", repr(statistic))


def _check_knots(name: str, knots: Tensor) -> None:
    if knots.ndim != 1 or len(knots) == 0:
        raise TopThetaValueError(name, "one dimension, not empty", f"shape {tuple(knots.shape)}")
    if knots[0] < 1 or not bool((knots[1:] > knots[:-1]).all()):
        raise TopThetaValueError(name, "ascending numbers of at least 1", shown(knots.tolist()))
    if knots[-1] > MAX_LENGTH:
        raise TopThetaValueError(name, f"numbers up to {MAX_LENGTH}", str(int(knots[-1])))


def _check_shapes(table: ThresholdTable) -> None:
    if table.theta.ndim != 4:
        got = f"shape {tuple(table.theta.shape)}"
        raise TopThetaValueError("theta", "four dimensions [K, L, Hq, R]", got)
    _, layers, heads, _ = table.theta.shape
    if not layers or not heads:
        raise TopThetaValueError("theta", "at least one layer and head", f"shape {tuple(table.theta.shape)}")
    full = (len(table.k), layers, heads, len(table.lengths))
    shapes = {
        "theta": full,
        "std": full,
        "counts": full[1:],
        "discarded_mass": full,
        "bracket": (2, *full),
    }
    for name, want in shapes.items():
        tensor = getattr(table, name)
        if tensor is not None and tensor.shape != want:
            raise TopThetaValueError(name, f"shape {want}", str(tuple(tensor.shape)))
    if len(table.layer_k) != layers:
        raise TopThetaValueError("layer_k", f"{layers} numbers, one per layer", str(len(table.layer_k)))


def _check_values(table: ThresholdTable) -> None:
    for name in ("theta", "std", "discarded_mass", "bracket"):
        tensor = getattr(table, name)
        if tensor is None:
            continue
        if bool(tensor.isnan().any()):
            raise TopThetaValueError(name, "numbers", "NaN", "calibrate again")
        if name != "theta" and not bool(((tensor >= 0) & (tensor < math.inf)).all()):
            raise TopThetaValueError(name, "finite numbers of at least 0", "others")
    if table.placement == "post_softmax" and bool((table.theta > 1).any()):
        raise TopThetaValueError(
            "theta", "probabilities of at most 1", str(table.theta.max().item()), "calibrate with a smaller alpha"
        )
    if bool((table.counts < 0).any()):
        raise TopThetaValueError("counts", "numbers of at least 0", str(int(table.counts.min())))
    unfounded = ~(table.counts > 0).any(dim=-1) & (table.theta > -math.inf).any(dim=-1).any(dim=0)
    if bool(unfounded.any()):
        layer, head = unfounded.nonzero()[0].tolist()
        raise TopThetaValueError(
            "counts",
            f"a row behind some threshold of layer {layer}, head {head}",
            "0 for all lengths",
            "a count of 0 marks a threshold that was filled in from a neighbouring length",
        )
