"""Rows of the query and key weights of every layer, found by name in a model or in its folder, and their digest.

A weight is known by its layer and its name within the attention module, such as ``q_proj.weight``, so that
neither the prefix nor the shard it lies in matters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, TopThetaValueError

#: Rows of a matrix that count, evenly spaced: at least two of every query head for up to 32 heads.
SAMPLED_ROWS = 64
#: Below this float16 has fewer digits than bfloat16; smaller weights count as 0.
_SMALLEST = 2.0**-16
#: The largest number that float16 and bfloat16 both have.
_LARGEST = 65280.0

_LAYER = re.compile(r"(?P<prefix>(?:[^.]*[^\d.][^.]*\.)*)(?P<layer>\d+)\.(?P<rest>.+)")
_ATTENTION = re.compile(r"(?:.*\.)?[^.]*att(?:n|ention)[^.]*\.(?P<part>[^.]+\..+)")
_SCORES = re.compile(r"[qk]_(proj|norm|layernorm)\..+")
_OTHER_TOWERS = re.compile(r"vision|visual|image|audio|speech|encoder")


class Weight(NamedTuple):
    """The shape of a tensor of a state dict, and how rows of it are read, on any device."""

    shape: tuple[int, ...]
    rows: Callable[[list[int]], Tensor]


#: The tensors of a model by their names in its state dict.
Weights = Mapping[str, Weight]


def weight_digests(weights: Weights, layers: int) -> tuple[str, ...]:
    """Compute the digests of the query and key weights of layers 0 to ``layers - 1``, 32 hexadecimal digits each.

    Weights count rounded to bfloat16, those below 2**-16 as 0. From there on float16 holds every bfloat16
    number and its numbers round to the same bfloat16 ones before and after a conversion, so that every load of
    a bfloat16 or float16 checkpoint gives the same digest. A float32 checkpoint is rounded once in bfloat16 and
    twice in float16: in float32 it has both digests.

    Raises:
        TopThetaNotImplementedError: the names do not tell the attention weights of every layer.
    """
    direct, through_half = hashlib.sha256(), hashlib.sha256()
    for layer, parts in enumerate(_attention_weights(weights, layers)):
        for part, name in sorted(parts.items()):
            shape = weights[name].shape
            rows = weights[name].rows(_sampled(shape)).detach().cpu()
            head = f"{layer} {part} {list(shape)}".encode()
            own = _canonical(rows)
            direct.update(head + own)
            # a bfloat16 or float16 number counts the same after it went through float16
            twice_rounded = rows.dtype in (torch.float32, torch.float64)
            through_half.update(head + (_canonical(rows.half()) if twice_rounded else own))
    return tuple(dict.fromkeys(digest.hexdigest()[:32] for digest in (direct, through_half)))


@contextmanager
def weights_of_folder(folder: Path) -> Iterator[Weights]:
    """Open the weights in the safetensors files of ``folder``.

    Raises:
        TopThetaValueError: there are none, or a file cannot be read.
    """
    with ExitStack() as stack:
        weights: dict[str, Weight] = {}
        for path in _files_of(folder):
            try:
                file = stack.enter_context(safe_open(str(path), framework="pt"))
            except (SafetensorError, OSError) as error:
                raise file_error(path, "a safetensors file", str(error), "get a complete copy") from error
            for name in file.keys():  # noqa: SIM118
                rows = file.get_slice(name)
                weights[name] = Weight(tuple(rows.get_shape()), partial(_rows_of_slice, rows))
        yield weights


def weights_of_model(model: PreTrainedModel) -> Weights:
    """List the weights of ``model``, also those that accelerate keeps on the disk, or elsewhere until a layer runs.

    Rows of weights that are nowhere raise TopThetaValueError.
    """
    tensors = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    return {
        name: Weight(tuple(tensor.shape), partial(_rows_of_tensor, model, name, tensor.detach()))
        for name, tensor in tensors.items()
    }


def _rows_of_slice(rows: Any, indices: list[int]) -> Tensor:
    return torch.cat([rows[index : index + 1] for index in indices])


def _rows_of_tensor(model: PreTrainedModel, name: str, tensor: Tensor, indices: list[int]) -> Tensor:
    if not tensor.is_meta:
        return tensor[torch.tensor(indices, dtype=torch.int64, device=tensor.device)]
    place, _, attribute = name.rpartition(".")
    module = model.get_submodule(place)
    if not hasattr(module, "_hf_hook"):  # accelerate's, which fetches the weights for each call
        raise TopThetaValueError(
            "model", "weights in memory, or offloaded by accelerate", "the meta device", "load it fully"
        )
    from accelerate.utils import align_module_device

    with align_module_device(module, execution_device="cpu"):
        fetched: Tensor = getattr(module, attribute).detach()
        return fetched[indices].clone()


def _attention_weights(names: Iterable[str], layers: int) -> list[dict[str, str]]:
    """Find the weights behind the scores, per layer: their names within the attention module, and in full."""
    towers: dict[str, dict[int, dict[str, str]]] = {}
    for name in names:
        key = _key_of(name)
        if key is not None:
            prefix, layer, part = key
            towers.setdefault(prefix, {}).setdefault(layer, {})[part] = name
    complete = {
        prefix: [_of_scores(by_layer[layer]) for layer in range(layers)]
        for prefix, by_layer in towers.items()
        if all(layer in by_layer for layer in range(layers))
    }
    if len(complete) > 1:
        complete = {prefix: found for prefix, found in complete.items() if not _OTHER_TOWERS.search(prefix)}
    if len(complete) != 1 or not all(next(iter(complete.values()))):
        got = ", ".join(sorted(complete or towers)) or "none"
        raise TopThetaNotImplementedError(
            "model", f"attention weights in each of the {layers} layers of one decoder", f"those of {got}",
            "use a decoder-only model such as LLaMA, Mistral or Qwen",
        )  # fmt: skip
    return next(iter(complete.values()))


def _key_of(name: str) -> tuple[str, int, str] | None:
    """Split a name into prefix, layer and name within the attention module. Return None for what is not in one."""
    found = _LAYER.fullmatch(name)
    inside = found and _ATTENTION.fullmatch(found["rest"])
    return (found["prefix"], int(found["layer"]), inside["part"]) if found and inside else None


def _of_scores(parts: Mapping[str, str]) -> dict[str, str]:
    """Choose the query and key weights, or all of the module's where they are fused with others."""
    separate = {part: name for part, name in parts.items() if _SCORES.fullmatch(part)}
    if {part.split(".")[0] for part in separate} >= {"q_proj", "k_proj"}:
        return separate
    return {part: name for part, name in parts.items() if part.rsplit(".", 1)[-1] in ("weight", "bias", "qweight")}


def _sampled(shape: tuple[int, ...]) -> list[int]:
    rows = shape[0] if shape else 0
    if len(shape) == 1 or rows <= SAMPLED_ROWS:
        return list(range(rows))
    return [index * (rows - 1) // (SAMPLED_ROWS - 1) for index in range(SAMPLED_ROWS)]


def _canonical(rows: Tensor) -> bytes:
    """Convert rows to the bytes of what counts. Packed integers count as they are."""
    if not rows.is_floating_point():
        return rows.contiguous().view(torch.uint8).numpy().tobytes()
    values = rows.float().bfloat16().float().nan_to_num(nan=0.0).clamp(-_LARGEST, _LARGEST)
    values = values.masked_fill(values.abs() < _SMALLEST, 0.0)
    return values.bfloat16().view(torch.int16).numpy().tobytes()


def _files_of(folder: Path) -> list[Path]:
    """List the files with the weights: the only one, the shards of one model, or all."""
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("model-*.safetensors"))
    if files := files or sorted(folder.glob("*.safetensors")):
        return files
    remedy = "save the model with save_pretrained, which writes safetensors"
    raise file_error(folder, "weights in *.safetensors", "none", remedy)
