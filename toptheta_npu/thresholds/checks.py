"""Checks a threshold table, whether calibrated, loaded or made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import Setting, TopThetaCombinationError, TopThetaTypeError, TopThetaValueError, shown
from .kinds import DISCARDED_STATISTICS, ESTIMATORS, MAX_LENGTH, UNITS
from .knots import MAX_LENGTH_KNOTS

DTYPES = {
    "theta": torch.float32,
    "k": torch.int64,
    "lengths": torch.int64,
    "counts": torch.int64,
    "std": torch.float32,
    "discarded_mass": torch.float32,
    "key_cache_scale": torch.float32,
    "value_cache_scale": torch.float32,
}
#: Groups of optional tensors; a table has all tensors of a group or none.
OPTIONAL_GROUPS = (("discarded_mass",), ("key_cache_scale", "value_cache_scale"))
OPTIONAL = {name for group in OPTIONAL_GROUPS for name in group}
#: The fields of a table by name.
Fields = Mapping[str, Any]


def check_fields(fields: Fields) -> None:
    """Raise a typed error for the first thing wrong with the fields of a table."""
    for name, dtype in DTYPES.items():
        value = fields[name]
        if value is None and name in OPTIONAL:
            continue
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
            raise TopThetaTypeError(name, f"a dense {dtype} tensor", shown(value))
        if value.dtype != dtype:
            raise TopThetaTypeError(name, str(dtype), str(value.dtype))
    _check_groups(fields)
    _check_header(fields)
    _check_knots("k", fields["k"])
    _check_knots("lengths", fields["lengths"])
    if len(fields["lengths"]) > MAX_LENGTH_KNOTS:
        raise TopThetaValueError("lengths", f"at most {MAX_LENGTH_KNOTS} lengths", str(len(fields["lengths"])))
    _check_shapes(fields)
    _check_values(fields)
    _check_cache_scales(fields)


def is_finite_number(value: object) -> bool:
    """Tell whether ``value`` is a number that a float64 can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def calibrated_with(k: int) -> tuple[str | Setting, ...]:
    """Say as a remedy how a table gets thresholds for ``k``."""
    return ("calibrate again with ", Setting("k", k), " as well")


def _check_groups(fields: Fields) -> None:
    for group in OPTIONAL_GROUPS:
        missing = [name for name in group if fields[name] is None]
        if missing and len(missing) < len(group):
            raise TopThetaValueError(missing[0], f"all or none of {', '.join(group)}", "None", "give the others, too")


def _check_header(fields: Fields) -> None:
    for name, choices in (("placement", tuple(UNITS)), ("estimator", ESTIMATORS)):
        if fields[name] not in choices:
            raise TopThetaValueError(name, f"one of {', '.join(choices)}", shown(fields[name]))
    if not is_finite_number(fields["alpha"]):
        raise TopThetaValueError("alpha", "a finite number", shown(fields["alpha"]))
    if not isinstance(fields["provenance"], Mapping):
        raise TopThetaTypeError("provenance", "a mapping of str to str", shown(fields["provenance"]))
    if not isinstance(fields["layer_k"], (list, tuple)):
        raise TopThetaTypeError("layer_k", "a list or tuple of ints", shown(fields["layer_k"]))
    for k in fields["layer_k"]:
        if type(k) is not int or not 0 <= k <= MAX_LENGTH:
            raise TopThetaValueError("layer_k", f"an int from 0 to {MAX_LENGTH} per layer", shown(k))
    if not isinstance(fields["fingerprint"], str):
        raise TopThetaTypeError("fingerprint", "a str", type(fields["fingerprint"]).__name__)
    for key, value in fields["provenance"].items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TopThetaTypeError("provenance", "str to str", f"{shown(key)}: {shown(value)}", "convert with str()")
    _check_statistic(fields)


def _check_statistic(fields: Fields) -> None:
    statistic = fields["discarded_statistic"]
    if statistic is not None and statistic not in DISCARDED_STATISTICS:
        expected = f"one of {', '.join(DISCARDED_STATISTICS)}, or None"
        raise TopThetaValueError("discarded_statistic", expected, shown(statistic))
    if statistic is not None and fields["discarded_mass"] is None:
        raise TopThetaCombinationError("discarded_statistic", "needs", "discarded_mass", "give both or neither")


def _check_knots(name: str, knots: Tensor) -> None:
    if knots.ndim != 1 or len(knots) == 0:
        raise TopThetaValueError(name, "one dimension, not empty", f"shape {tuple(knots.shape)}")
    if knots[0] < 1 or not bool((knots[1:] > knots[:-1]).all()):
        raise TopThetaValueError(name, "ascending numbers of at least 1", shown(knots.tolist()))
    if knots[-1] > MAX_LENGTH:
        raise TopThetaValueError(name, f"numbers up to {MAX_LENGTH}", str(int(knots[-1])))


def _check_shapes(fields: Fields) -> None:
    theta: Tensor = fields["theta"]
    if theta.ndim != 4:
        raise TopThetaValueError("theta", "four dimensions [K, L, Hq, R]", f"shape {tuple(theta.shape)}")
    _, layers, heads, _ = theta.shape
    if not layers or not heads:
        raise TopThetaValueError("theta", "at least one layer and head", f"shape {tuple(theta.shape)}")
    full = (len(fields["k"]), layers, heads, len(fields["lengths"]))
    shapes = {
        "theta": full,
        "std": full,
        "counts": full[1:],
        "discarded_mass": full,
    }
    for name, want in shapes.items():
        tensor = fields[name]
        if tensor is not None and tensor.shape != want:
            raise TopThetaValueError(name, f"shape {want}", str(tuple(tensor.shape)))
    if len(fields["layer_k"]) != layers:
        raise TopThetaValueError("layer_k", f"{layers} numbers, one per layer", str(len(fields["layer_k"])))


def _check_cache_scales(fields: Fields) -> None:
    heads = fields["theta"].shape[2]
    key, value = fields["key_cache_scale"], fields["value_cache_scale"]
    if key is None:
        return
    if (
        key.ndim != 3
        or not key.shape[2]
        or not key.shape[1]
        or heads % key.shape[1]
        or len(key) != len(fields["layer_k"])
    ):
        expected = f"shape [{len(fields['layer_k'])} layers, KV heads that divide {heads} heads, head_dim]"
        raise TopThetaValueError("key_cache_scale", expected, str(tuple(key.shape)))
    if value.shape != key.shape:
        raise TopThetaValueError("value_cache_scale", f"shape {tuple(key.shape)}", str(tuple(value.shape)))
    for name, scale in (("key_cache_scale", key), ("value_cache_scale", value)):
        if not bool(((scale > 0) & (scale < math.inf)).all()):
            raise TopThetaValueError(name, "finite numbers above 0", "others", "calibrate the scales again")


def _check_values(fields: Fields) -> None:
    theta: Tensor = fields["theta"]
    counts: Tensor = fields["counts"]
    for name in ("theta", "std", "discarded_mass"):
        tensor = fields[name]
        if tensor is None:
            continue
        if bool(tensor.isnan().any()):
            raise TopThetaValueError(name, "numbers", "NaN", "calibrate again")
        if name != "theta" and not bool(((tensor >= 0) & (tensor < math.inf)).all()):
            raise TopThetaValueError(name, "finite numbers of at least 0", "others")
    if fields["placement"] == "post_softmax" and bool((theta > 1).any()):
        raise TopThetaValueError(
            "theta", "probabilities of at most 1", str(theta.max().item()), "calibrate with a smaller alpha"
        )
    if bool((counts < 0).any()):
        raise TopThetaValueError("counts", "numbers of at least 0", str(int(counts.min())))
    unfounded = ~(counts > 0).any(dim=-1) & (theta > -math.inf).any(dim=-1).any(dim=0)
    if bool(unfounded.any()):
        layer, head = unfounded.nonzero()[0].tolist()
        raise TopThetaValueError(
            "counts",
            f"a row behind some threshold of layer {layer}, head {head}",
            "0 for all lengths",
            "a count of 0 marks a threshold that was filled in from a neighbouring length",
        )
