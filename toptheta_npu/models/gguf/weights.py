"""The weights of a GGUF file, multiplied out, by their names in transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, TopThetaValueError
from .architectures import Architecture, Sizes
from .contents import AGAIN, NO_WAY, Contents, Stored

if TYPE_CHECKING:
    from torch import Tensor

_ROTATED = ("attn_q.weight", "attn_k.weight")


def read_weights(
    contents: Contents, kind: Architecture, sizes: Sizes, dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Read all weights, in ``dtype``.

    Raises:
        TopThetaValueError: weights that are not finite, or not in ``dtype``.
        TopThetaNotImplementedError: a type of weights that cannot be multiplied out.
    """
    in_pairs = dict(zip(_ROTATED, (sizes.heads, sizes.kv_heads), strict=True)) if kind.pairs else {}
    targets, weights = kind.tensors(sizes), {}
    for name, stored in contents.tensors.items():
        target, _, part = targets[name]
        weight = _multiplied_out(contents.file, name, stored)
        if part in in_pairs:
            weight = _in_halves(weight, in_pairs[part])
        if part.endswith("norm.weight"):
            weight -= kind.norms_plus
        weights[target] = torch.from_numpy(weight).to(dtype)
        _check_finite(contents.file, target, weights[target], dtype)
        if progress is not None:
            progress(len(weights), len(contents.tensors))
    return weights


def _multiplied_out(file: Path, name: str, stored: Stored) -> np.ndarray:
    from gguf import dequantize

    found = np.fromfile(file, np.uint8, stored.size, offset=stored.offset)
    try:
        weight = dequantize(found.reshape(*stored.shape[:-1], -1), stored.kind)
    except NotImplementedError as error:
        expected = "weights of a type that the package gguf multiplies out"
        raise TopThetaNotImplementedError(str(file), expected, f"{stored.kind.name} of {name}", NO_WAY) from error
    return np.ascontiguousarray(weight, np.float32).reshape(stored.shape)


def _in_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of each head as transformers rotates them: the first of each pair, then the second of each."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def _check_finite(file: Path, name: str, weight: Tensor, dtype: torch.dtype) -> None:
    if not weight.isfinite().all():
        got = f"{name} with numbers that are not finite"
        if dtype == torch.float32:
            raise file_error(file, "finite weights", got, AGAIN)
        raise TopThetaValueError("dtype", "one that holds all weights", got, f"{dtype} may be too small for them")
