"""Rows of the query and key weights of every layer, found by name, and their digest.

A weight is identified by its layer and its name within the attention module, such as ``q_proj.weight``. Its prefix
and its shard do not matter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaNotImplementedError
from .tensors import USE_TAU, dequantised, entries_of, fetched, unreadable

#: Rows of a matrix that count, evenly spaced: at least two of every query head for up to 32 heads.
SAMPLED_ROWS = 64
#: Below this float16 has fewer digits than bfloat16; smaller weights count as 0.
_SMALLEST = 2.0**-16
#: The largest number that float16 and bfloat16 both have.
_LARGEST = 65280.0

_LAYER = re.compile(r"(?P<prefix>(?:[^.]*[^\d.][^.]*\.)*)(?P<layer>\d+)\.(?P<rest>.+)")
_ATTENTION = re.compile(r"(?:.*\.)?[^.]*att(?:n|ention)[^.]*\.(?P<part>[^.]+\..+)")
_SCORES = re.compile(r"[qk]_(proj|norm|layernorm)\..+")
#: Projections that are not part of a score. Any other name may fuse query and key with others.
_NOT_OF_SCORES = frozenset({"v_proj", "o_proj", "out_proj", "c_proj", "dense"})
_OTHER_TOWERS = re.compile(r"vision|visual|image|audio|speech|encoder")


class Weight(NamedTuple):
    """The shape of a tensor of a state dict, and how rows of it are read, on any device.

    An entry that is not a tensor, such as a packed weight, has no shape.
    """

    shape: tuple[int, ...] | None
    rows: Callable[[list[int]], Tensor]


#: The tensors of a model by their names in its state dict.
Weights = Mapping[str, Weight]


def weight_digests(weights: Weights, layers: int) -> tuple[str, ...]:
    """Compute the digests of the query and key weights of layers 0 to ``layers - 1``, 32 hexadecimal digits each.

    Weights are rounded to bfloat16, and weights below 2**-16 count as 0. From 2**-16 on, float16 holds every bfloat16
    number, and rounding to bfloat16 gives the same result before and after a conversion. So every load of a bfloat16
    or float16 checkpoint gives the same digest. A float32 checkpoint is rounded once in bfloat16 and twice in
    float16: in float32 it has both digests.

    Raises:
        TopThetaNotImplementedError: the names do not show the attention weights of every layer, or the weights are in a
            form whose numbers cannot be read.
    """
    direct, through_half = hashlib.sha256(), hashlib.sha256()
    for layer, parts in enumerate(_attention_weights(weights, layers)):
        for part, name in sorted(parts.items()):
            shape = weights[name].shape or ()
            rows = weights[name].rows(_sampled(shape)).detach().cpu()
            head = f"{layer} {part} {list(shape)}".encode()
            try:
                own = _canonical(rows)
            except NotImplementedError as error:
                raise unreadable(f"{name}, of dtype {rows.dtype}", error) from error
            direct.update(head + own)
            # a bfloat16 or float16 number counts the same after it went through float16
            twice_rounded = rows.dtype in (torch.float32, torch.float64)
            through_half.update(head + (_canonical(rows.half()) if twice_rounded else own))
    return tuple(dict.fromkeys(digest.hexdigest()[:32] for digest in (direct, through_half)))


def weights_of_model(model: PreTrainedModel) -> Weights:
    """List the weights of ``model``, also quantised ones, and those that accelerate keeps elsewhere until a layer runs.

    Rows of weights that are nowhere, or in a form that does not tell its numbers, raise a typed error.
    """
    return {
        name: Weight(
            tuple(entry.shape) if isinstance(entry, Tensor) else None, partial(_rows_of_entry, model, name, entry)
        )
        for name, entry in entries_of(model).items()
    }


def _rows_of_entry(model: PreTrainedModel, name: str, entry: Any, indices: list[int]) -> Tensor:
    if not isinstance(entry, Tensor):
        raise unreadable(f"{name}, a packed weight")
    with fetched(model, name, entry) as tensor:
        plain = dequantised(name, tensor)
        try:
            chosen = torch.tensor(indices, dtype=torch.int64, device=plain.device)
            return plain[chosen] if plain.dim() else plain.clone()
        except NotImplementedError as error:
            raise unreadable(f"{name}, of dtype {plain.dtype}", error) from error


def _attention_weights(weights: Weights, layers: int) -> list[dict[str, str]]:
    """Find the weights behind the scores, per layer: their names within the attention module, and in full."""
    towers: dict[str, dict[int, dict[str, str]]] = {}
    for name in weights:
        key = _key_of(name)
        if key is not None:
            prefix, layer, part = key
            towers.setdefault(prefix, {}).setdefault(layer, {})[part] = name
    complete = {
        prefix: [_of_scores(by_layer[layer], weights) for layer in range(layers)]
        for prefix, by_layer in towers.items()
        if all(layer in by_layer for layer in range(layers))
    }
    if len(complete) > 1:
        complete = {prefix: found for prefix, found in complete.items() if not _OTHER_TOWERS.search(prefix)}
    if len(complete) != 1:
        got = ", ".join(sorted(complete or towers)) or "none"
        raise TopThetaNotImplementedError(
            "model", f"attention weights in each of the {layers} layers of one decoder", f"those of {got}",
            f"use a decoder-only model such as LLaMA, Mistral or Qwen, or {USE_TAU}",
        )  # fmt: skip
    ((prefix, found),) = complete.items()
    if not all(found):
        where = f"{prefix}{found.index({})}"
        raise TopThetaNotImplementedError(
            "model", "query and key weights by name in every layer", f"none in {where}", USE_TAU
        )
    return found


def _key_of(name: str) -> tuple[str, int, str] | None:
    """Split a name into prefix, layer and name within the attention module. Return None for what is not in one."""
    found = _LAYER.fullmatch(name)
    inside = found and _ATTENTION.fullmatch(found["rest"])
    return (found["prefix"], int(found["layer"]), inside["part"]) if found and inside else None


def _of_scores(parts: Mapping[str, str], weights: Weights) -> dict[str, str]:
    """Choose the query and key weights, or all of the module's where they are fused with others. None: no weights."""

    def matrices(chosen: Mapping[str, str]) -> set[str]:
        shapes = {part: weights[name].shape for part, name in chosen.items()}
        return {part.split(".")[0] for part, shape in shapes.items() if shape is None or len(shape) > 1}

    separate = {part: name for part, name in parts.items() if _SCORES.fullmatch(part)}
    if matrices(separate) >= {"q_proj", "k_proj"}:
        return separate
    fused = {part: name for part, name in parts.items() if weights[name].shape is None or _is_weight(part)}
    known = matrices(fused)
    return fused if known - _NOT_OF_SCORES and "v_proj" not in known else {}


def _is_weight(part: str) -> bool:
    """Tell whether this is a weight or a bias, or belongs to a quantised one, such as ``c_attn.weight.absmax``."""
    *place, last = part.split(".")
    return last in ("weight", "bias", "qweight") or "weight" in place


def _sampled(shape: tuple[int, ...]) -> list[int]:
    rows = shape[0] if shape else 0
    if len(shape) == 1 or rows <= SAMPLED_ROWS:
        return list(range(rows))
    return [index * (rows - 1) // (SAMPLED_ROWS - 1) for index in range(SAMPLED_ROWS)]


def _canonical(rows: Tensor) -> bytes:
    """Convert rows to the bytes of what counts. Packed integers count as they are."""
    if not rows.is_floating_point():
        return rows.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    values = rows.float().bfloat16().float().nan_to_num(nan=0.0).clamp(-_LARGEST, _LARGEST)
    values = values.masked_fill(values.abs() < _SMALLEST, 0.0)
    return values.bfloat16().view(torch.int16).numpy().tobytes()
