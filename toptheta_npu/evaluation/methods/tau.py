"""One probability for all heads, layers and row lengths: an element with less of its row's attention is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from ..._checks import check_choice
from ...errors import TopThetaValueError, shown
from ...fallback.prefill import RowChunk, Selector
from ...fallback.reference import log_sum_exp
from .blocks import check_block, in_blocks, of_keys
from .method import Method
from .selecting import by_selection, selected
from .spec import COMPENSATED, SELECTION, MethodKind, MethodSpec, Option, Setting

#: What an element's score is compared with: the row's LSE, that of the tiles read so far, or one of a sample of keys.
Lse = Literal["exact", "running", "sampled"]


def select_probable(tau: float, lse: Lse = "exact", tile: int = 128) -> Selector:
    """Keep the elements whose probability after the softmax exceeds ``tau``.

    Args:
        tau: above 0, below 1.
        lse: ``"exact"`` divides by the row's whole denominator, which takes a first pass over K. ``"running"`` takes
            that of the tiles read so far, the first tile and then the newest to the oldest, so it keeps at least as
            much. ``"sampled"`` estimates it from the first 16 keys, the newest 128 and 256 between.
        tile: keys in a tile of ``"running"``.

    Raises:
        TopThetaValueError: a value out of range.
    """
    if not 0 < tau < 1:
        raise TopThetaValueError("tau", "a probability between 0 and 1", shown(tau), "such as 0.001")
    check_choice("lse", lse, get_args(Lse))
    check_block("tile", tile)
    bound = math.log(tau)
    denominators: dict[str, Callable[[RowChunk], Tensor]] = {
        "exact": lambda chunk: log_sum_exp(chunk.scores, chunk.learnable_sink).unsqueeze(-1),
        "running": lambda chunk: running_lse(chunk, tile),
        "sampled": lambda chunk: chunk.sampled_lse().unsqueeze(-1),
    }
    return lambda chunk: chunk.scores - denominators[lse](chunk) > bound


def running_lse(chunk: RowChunk, tile: int) -> Tensor:
    """Give every key the LSE of the tiles that are read up to its own, [B, Hq, rows, S]."""
    of_tiles = in_blocks(chunk.scores, chunk, tile, -math.inf).logsumexp(-1)
    order = [0, *range(of_tiles.shape[-1] - 1, 0, -1)]
    read = torch.empty_like(of_tiles)
    read[..., order] = of_tiles[..., order].logcumsumexp(-1)
    return of_keys(read, chunk, tile)


def _make(spec: MethodSpec, setting: Setting) -> Method:
    options = spec.options
    rule = by_selection(select_probable(options["tau"], options["lse"], options["tile"]), spec.selection)
    return Method(setting.family, None, lambda model: selected(model, lambda layer: rule, spec.compensation))


KIND = MethodKind(
    "tau", "τ", _make, has_k=False,
    options={
        "tau": Option(1e-3, label="{:g}", always=True), "lse": Option("exact", get_args(Lse), "{} LSE"),
        "tile": Option(128, label="tiles of {}"), **COMPENSATED, "selection": SELECTION,
    },
)  # fmt: skip
