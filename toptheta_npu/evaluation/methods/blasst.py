"""BLASST (arXiv 2512.12087): tiles of keys that are not negligible beside the largest score before them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaValueError, shown
from ...fallback.prefill import RowChunk, Selector
from .blocks import check_block, in_blocks, of_groups, of_keys
from .control import control
from .matching import nearest_cut, value_rows_by_cut, wanted_value_rows
from .method import EVERY_KEY, Compensation, Method, Selection
from .options import AS_PUBLISHED, SELECTION, whole_number
from .spec import MethodKind, MethodSpec, Reference

# the logarithms of scale factors that are told apart: steps of 1/128 up to e^24
_LEAST, _STEP, _STEPS = -40.0, 1 / 128, 8192


def select_tiles(scale_factor: float, tile: int = 128) -> Selector:
    """Skip a tile of keys whose largest score lies below the running maximum by more than ln(n / factor).

    A decode step goes through the tiles from the row's first key on and skips one if
    exp(its maximum - the running maximum) < lambda = factor / n. The running maximum includes the tile's own, so a tile
    that holds the largest score so far is kept, also where n is below the factor and lambda above 1.

    Raises:
        TopThetaValueError: ``tile`` is not positive, or ``scale_factor`` is negative or NaN.
    """
    if not scale_factor >= 0:
        raise TopThetaValueError("scale_factor", "a number >= 0", shown(scale_factor))
    check_block("tile", tile)
    bound = math.log(scale_factor) if scale_factor else -math.inf

    def select(chunk: RowChunk) -> Tensor:
        return of_keys(largest_log_factor(chunk, tile) >= bound, chunk, tile)

    return select


def largest_log_factor(chunk: RowChunk, tile: int) -> Tensor:
    """Give the logarithm of the largest scale factor with which each tile is kept, [B, Hq, rows, tiles].

    It is infinite for the tiles that are always kept; a tile without visible keys has -inf.
    """
    maximum = in_blocks(chunk.scores, chunk, tile, -math.inf).amax(-1)
    running = maximum.cummax(-1).values
    factor = maximum - running + chunk.n.clamp_min(1).float().log().unsqueeze(-1)
    return factor.masked_fill(maximum == running, math.inf).masked_fill(maximum == -math.inf, -math.inf)


def blasst(
    k: int,
    scale_factor: float,
    targets: Sequence[int],
    *,
    tile: int = 128,
    compensated: bool | Compensation = False,
    selection: Selection = "own",
) -> Method:
    """Attend to the tiles of `select_tiles`; Top-k in the first layers.

    Args:
        k: of the Top-θ run that it is matched to.
        scale_factor, tile: as in `select_tiles`.
        targets: the k of each layer, of which the first layers' are used.
        compensated, selection: as in `top_theta.top_theta`.
    """
    return control("BLASST", k, targets, select_tiles(scale_factor, tile), compensated, EVERY_KEY, selection)


def match_scale_factor(
    model: PreTrainedModel, windows: Tensor, keys: float, value_rows: float, tile: int
) -> tuple[float, float]:
    """Find the scale factor for a mean number of V rows per KV head, and the number that it gives on ``windows``.

    Args:
        model: in evaluation mode.
        windows: int64 [W, T] tokens.
        keys: the mean number of keys of the rows.
        value_rows: wanted.
        tile: keys in a tile.

    Raises:
        TopThetaValueError: the windows are too short.
    """

    def place(chunk: RowChunk) -> Tensor:
        factor = of_groups(largest_log_factor(chunk, tile), chunk).amax(2)
        return _STEPS - 1 - ((factor - _LEAST) / _STEP).floor().clamp(0, _STEPS - 1).long()

    kept = value_rows_by_cut(model, windows, keys, tile, place, _STEPS)
    cut = nearest_cut(kept, value_rows)
    factor = 0.0 if cut == _STEPS else math.exp(_LEAST + (_STEPS - cut) * _STEP)
    return factor, float(kept[cut])


def _match(spec: MethodSpec, to: Reference) -> Method:
    """Find the scale factor with which the mean number of V rows is that of the reference."""
    tile, wanted = spec.options["tile"], wanted_value_rows(to.reads, EVERY_KEY)
    factor, expected = match_scale_factor(to.model, to.windows, to.reads.keys_mean, wanted, tile)
    method = blasst(to.k, factor, to.layer_targets, tile=tile, compensated=spec.compensation, selection=spec.selection)
    settings = {"scale_factor": factor, "wanted_value_rows": wanted, "expected_value_rows": expected}
    return replace(method, settings=settings)


KIND = MethodKind(
    "blasst", "BLASST", match=_match, calibrates=True,
    options={**AS_PUBLISHED, "selection": SELECTION, "tile": whole_number(128, "tiles of {}")},
)  # fmt: skip
