"""Summarises a table for people and programs as plain dicts and lists, with None for missing values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import TopThetaValueError, shown
from .table import ThresholdTable

_SHOWN_LENGTHS = 4
#: The key in a table's provenance that says why some of its layers are dense.
_WHY_DENSE = "dense layers"


def summarise(table: ThresholdTable, k: int | None = None, layer: int | None = None) -> dict[str, Any]:
    """Gather everything that ``toptheta inspect`` shows.

    Args:
        table: the table.
        k: the k whose thresholds and gaps to show; None: the middle one of the calibrated k.
        layer: the layer whose heads to show one by one; None: all layers, summarised over their heads.

    Raises:
        TopThetaTypeError, TopThetaValueError: ``k`` is outside the calibrated range, or the layer does not exist.
    """
    k = int(table.k[len(table.k) // 2]) if k is None else k
    lengths = shown_lengths(table, k)
    if layer is not None and not 0 <= layer < table.num_layers:
        raise TopThetaValueError("layer", f"0 to {table.num_layers - 1}", shown(layer))
    found = {"header": header(table), "shown_k": k, "shown_lengths": lengths}
    if layer is not None:
        return {**found, "layer": layer, "heads": heads_of(table, k, layer, lengths)}
    return {**found, "layers": layers_of(table, k, lengths)}


def in_words(table: ThresholdTable, ks: Sequence[int] | None = None) -> str:
    """Describe a table in one line; ``ks`` replaces its own k.

    Example:
        >>> from toptheta_npu import ThresholdTable
        >>> n = torch.tensor([16, 32])
        >>> print(in_words(ThresholdTable(
        ...     theta=torch.ones(1, 1, 1, 2), k=torch.tensor([8]), lengths=n, std=torch.zeros(1, 1, 1, 2),
        ...     counts=torch.ones(1, 1, 2, dtype=torch.int64), placement="pre_softmax", estimator="pooled", alpha=0.0,
        ...     layer_k=[0], fingerprint="demo")))
        pre_softmax, pooled, k = 8, 1 layer x 1 head, rows of 16 to 32 keys
    """
    shown_ks = ", ".join(map(str, table.k.tolist() if ks is None else ks))
    layers = f"{table.num_layers} layer{'s' * (table.num_layers > 1)}"
    heads = f"{table.num_heads} head{'s' * (table.num_heads > 1)}"
    rows = f"rows of {int(table.lengths[0])} to {int(table.lengths[-1])} keys"
    return f"{table.placement}, {table.estimator}, k = {shown_ks}, {layers} x {heads}, {rows}"


def header(table: ThresholdTable) -> dict[str, Any]:
    """Gather the facts about the whole table."""
    return {
        "placement": table.placement,
        "unit": table.unit,
        "estimator": table.estimator,
        "alpha": table.alpha,
        "layers": table.num_layers,
        "heads": table.num_heads,
        "k": table.k.tolist(),
        "layer_k": list(table.layer_k),
        "lengths": table.lengths.tolist(),
        "fingerprint": table.fingerprint,
        "provenance": dict(table.provenance),
        "discarded_statistic": table.discarded_statistic,
        "has_discarded_mass": table.discarded_mass is not None,
        "has_cache_scales": table.key_cache_scale is not None,
        "dense_layers": [{"layers": layers, "why": why} for why, layers in dense_layers(table).items()],
    }


def told_dense(layers: Sequence[int], why: str) -> dict[str, str]:
    """Write the provenance entry that says why ``layers`` are dense; empty without such layers.

    Example:
        >>> told_dense([0, 2], "a sliding window")
        {'dense layers': '0, 2: a sliding window'}
    """
    return {_WHY_DENSE: f"{', '.join(map(str, layers))}: {why}"} if layers else {}


def dense_layers(table: ThresholdTable) -> dict[str, list[int]]:
    """List the layers without any threshold, grouped by the reason."""
    why, told = _told(table.provenance)
    found: dict[str, list[int]] = {}
    for layer in (table.theta == -math.inf).transpose(0, 1).flatten(1).all(1).nonzero().flatten().tolist():
        least = int(table.calibrated_targets[0, layer])
        short = least >= int(table.lengths[-1])
        other = f"keeps at least {least}, and no calibrated row is longer" if short else "no row of it was calibrated"
        found.setdefault(why if layer in told else other, []).append(layer)
    return found


def _told(provenance: Mapping[str, str]) -> tuple[str, list[int]]:
    said = re.fullmatch(r"([0-9]{1,5}(?:, [0-9]{1,5})*): (.+)", provenance.get(_WHY_DENSE, ""))
    return (said[2], [int(layer) for layer in said[1].split(", ")]) if said else ("", [])


def shown_lengths(table: ThresholdTable, k: int) -> list[int]:
    """Choose a few calibrated lengths, from the first that is sparse in some layer to the last."""
    sparse = table.lengths[table.lengths > min(table.layer_targets(k))]
    if not len(sparse):
        return [int(table.lengths[-1])]
    wanted = torch.logspace(
        math.log2(sparse[0]), math.log2(sparse[-1]), _SHOWN_LENGTHS, 2.0, dtype=torch.float32, device="cpu"
    )
    nearest = (sparse.double().log2() - wanted.double().log2()[:, None]).abs().argmin(dim=1)
    return sparse[nearest.unique()].tolist()


def layers_of(table: ThresholdTable, k: int, lengths: list[int]) -> list[dict[str, Any]]:
    """Summarise each layer over its heads: thresholds and gaps."""
    at_k = table.at(k)
    found = []
    for layer, target in enumerate(at_k.layer_targets):
        theta = at_k.theta[layer][torch.tensor(lengths, dtype=torch.int64, device="cpu")]
        found.append({
            "layer": layer,
            "target": target,
            "theta": [_spread(heads) for heads in theta],
            "gaps": _gaps(table, target, layer),
        })  # fmt: skip
    return found


def heads_of(table: ThresholdTable, k: int, layer: int, lengths: list[int]) -> list[dict[str, Any]]:
    """Summarise each head of a layer: thresholds and calibration rows."""
    theta = table.at(k).theta[layer][torch.tensor(lengths, dtype=torch.int64, device="cpu")]
    return [
        {
            "head": head,
            "theta": [_finite(value) for value in theta[:, head].tolist()],
            "rows": int(table.counts[layer, head].sum()),
        }
        for head in range(table.num_heads)
    ]


def _spread(heads: Tensor) -> dict[str, float | int] | None:
    """Compute mean, least and most over the heads that are not dense; None if all are."""
    known = heads[heads.isfinite()].double()
    if not len(known):
        return None
    mean, least, most = known.mean().item(), known.min().item(), known.max().item()
    return {"mean": mean, "min": least, "max": most, "dense_heads": len(heads) - len(known)}


def _gaps(table: ThresholdTable, target: int, layer: int) -> dict[str, Any]:
    """Find the knots that were filled from their neighbours, among those longer than the effective k."""
    wanted = table.lengths > target
    missing = wanted & (table.counts[layer] == 0)
    # a layer without rows has nothing to fill from: it is dense
    missing &= bool(table.counts[layer].any())
    return {
        "filled": int(missing.sum()),
        "of": int(wanted.sum()) * table.num_heads,
        "lengths": table.lengths[missing.any(dim=0)].tolist(),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
