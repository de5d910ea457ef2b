"""Counts the bytes of a model's weights by name: of a loaded model, or of its folder, from only the files' headers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..._files import file_error
from .folder import files_of

_WHAT = "a safetensors file"
#: The longest header that the format allows.
_MAX_HEADER = 100_000_000
#: Bytes of the number at the start of a file, which is the length of its header.
_PREFIX = 8
#: Dtypes that loading converts to the dtype of the model; other numbers, such as packed ones, stay unchanged.
_CONVERTED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def sizes_of_model(model: PreTrainedModel) -> dict[str, int]:
    """Count the bytes of every parameter of a loaded model."""
    return {name: each.numel() * each.element_size() for name, each in model.named_parameters()}


def sizes_of_folder(folder: Path, config: Any) -> tuple[dict[str, int], torch.dtype]:
    """Count the bytes of every weight, loaded as it is stored, and return the dtype of the model.

    Args:
        folder: folder of the model.
        config: configuration of the whole model. If it has no dtype, the dtype of most weights counts.

    Raises:
        TopThetaValueError: the folder has no weights, or a file does not hold any.
    """
    entries: dict[str, tuple[str, int, int]] = {}
    for path in files_of(folder, getattr(config, "transformers_weights", None)):
        entries |= _header(path)
    dtype = _dtype(config, entries)
    sizes = {
        name: numbers * dtype.itemsize if kind in _CONVERTED else stored
        for name, (kind, numbers, stored) in entries.items()
    }
    return sizes, dtype


def _dtype(config: Any, entries: dict[str, tuple[str, int, int]]) -> torch.dtype:
    told = getattr(config, "dtype", None) or getattr(config.get_text_config(decoder=True), "dtype", None)
    if isinstance(told, str):
        told = getattr(torch, told.removeprefix("torch."), None)
    if isinstance(told, torch.dtype):
        return told
    numbers = dict.fromkeys(_CONVERTED, 0)
    for kind, count, _ in entries.values():
        if kind in numbers:
            numbers[kind] += count
    return _CONVERTED[max(numbers, key=numbers.__getitem__)]


def _header(path: Path) -> dict[str, tuple[str, int, int]]:
    """Read dtype, number of elements and bytes of every tensor, from the first bytes of the file."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(_PREFIX), "little")
            content = file.read(length) if 0 < length <= _MAX_HEADER else b""
        header = json.loads(content)
        header.pop("__metadata__", None)
        return {
            name: (entry["dtype"], math.prod(entry["shape"]), entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in header.items()
        }
    except OSError as error:
        raise file_error(path, _WHAT, error.strerror or str(error), "get a complete copy") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise file_error(path, _WHAT, "another file, or a part of one", "get a complete copy") from error
