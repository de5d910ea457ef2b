"""Methods without a k of their own, set so that they read as much as Top-θ at k read on the same task.

What is set, and how well it matches:

- last-k: its window is the target's mean number of V rows, rounded. Rows that are longer read exactly that many.
- random-k: so many keys that a KV group of heads which draw apart reads the target's V rows on average, in rows of the
  target's mean length.
- BLASST: the scale factor, such that the mean number of V rows is the target's.
- pages: their number, such that K and V rows together, the least and largest elements of every page among them, are
  the target's on average.

The last two are found in one pass over calibration text with dense attention. In its rows of about the target's
length, every block of keys is observed: from how large a number of pages, or up to which scale factor, a KV group of
query heads reads it. The numbers of keys of all blocks go into one histogram over that, of bounded size, and its
quantile is the answer. So the match is exact up to one step of the histogram for those rows, in layers from 2 on, with
dense attention before them. On another text, and with the method's own output in the layers before, it is as good as
the two are alike.
Where even the sparsest setting reads more than the target (BLASST keeps every tile that raises the running maximum),
that setting is taken. What a method did read is always measured with its task.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaValueError
from ...fallback import baselines
from ...fallback.prefill import RowChunk, row_chunks
from ...models.hook.architecture import num_heads, num_key_value_heads
from ...models.hook.attach import attached
from ...models.hook.attention import AttentionCall
from ..reads import Reads
from . import kinds
from .kinds import DENSER_LAYERS, KeyReads, Method
from .names import MethodSpec

# the logarithms of scale factors that are told apart: steps of 1/128 up to e^24
_LEAST, _STEP, _STEPS = -40.0, 1 / 128, 8192


def matched_method(
    spec: MethodSpec,
    k: int,
    target: Reads,
    model: PreTrainedModel,
    calibration_windows: Tensor,
    layer_targets: Sequence[int],
) -> Method:
    """The method of a spec that reads about as much as Top-θ did; the module's text says how well it matches.

    Args:
        spec: one with ``is_matched``.
        k: of the Top-θ run.
        target: what that run read in layers from 2 on.
        model: in evaluation mode.
        calibration_windows: int64 [W, T] tokens, T at least the target's mean number of keys. Only BLASST and pages
            look at them, in the rows whose numbers of keys lie around that mean.
        layer_targets: the k of each layer, of which those of the first layers are used.

    Returns:
        The method, whose ``settings`` say what was found, what was wanted and what it gives on the calibration text.

    Raises:
        TopThetaValueError: ``spec`` is not matched, or the windows are shorter than the target's rows.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> from toptheta_npu.evaluation import corpus
        >>> from toptheta_npu.evaluation.methods.names import parse_method
        >>> model, tokenizer = load_tiny_llama()
        >>> windows = corpus.token_windows(tokenizer, "calibration", 320, 1)
        >>> target = Reads(kept_mean=64, value_rows_mean=120, value_rows_p95=150, value_rows_max=200, keys_mean=256)
        >>> spec = parse_method("pages:page=8")
        >>> method = matched_method(spec, 64, target, model, windows, [64] * model.config.num_hidden_layers)
        >>> reads = method.settings["expected_value_rows"]
        >>> abs(method.key_reads.rows(256, reads) + reads - (256 + 120)) < 16
        True
    """
    if not spec.is_matched:
        raise TopThetaValueError("spec", "a method that is matched", spec.text, "use methods.names.make_method")
    options: dict[str, Any] = {"compensated": spec.compensation}
    if spec.selection is not None:
        options["selection"] = spec.selection
    settings: dict[str, float]
    rows = max(1, round(target.value_rows_mean))
    if spec.name == "last-k":
        method, settings = kinds.last_k(k, rows, layer_targets, **options), {"rows": rows}
    elif spec.name == "random-k":
        group = num_heads(model) // num_key_value_heads(model)
        method = kinds.random_k(k, rows, group, layer_targets, round(target.keys_mean), **options)
        settings = {"expected_value_rows": rows}
    elif spec.tile is not None:
        wanted = _wanted_value_rows(target, kinds.EVERY_KEY)
        factor, expected = match_scale_factor(model, calibration_windows, target.keys_mean, wanted, spec.tile)
        method = kinds.blasst(k, factor, layer_targets, tile=spec.tile, **options)
        settings = {"scale_factor": factor, "wanted_value_rows": wanted, "expected_value_rows": expected}
    else:
        page = spec.page or 0
        reads = kinds.key_reads_of(spec.compensation, kinds.page_key_reads(page))
        wanted = _wanted_value_rows(target, reads)
        count, expected = match_pages(model, calibration_windows, target.keys_mean, wanted, page)
        method = kinds.pages(k, count, layer_targets, page=page, **options)
        settings = {"count": count, "wanted_value_rows": wanted, "expected_value_rows": expected}
    return dataclasses.replace(method, family=spec.label, settings=settings)


def match_scale_factor(
    model: PreTrainedModel, windows: Tensor, keys: float, value_rows: float, tile: int
) -> tuple[float, float]:
    """The scale factor of BLASST for a mean number of V rows per KV head, and the number that it gives on ``windows``.

    Args:
        model, windows: as in `matched_method`.
        keys: the mean number of keys of the rows.
        value_rows: wanted.
        tile: of BLASST.

    Raises:
        TopThetaValueError: the windows are too short.
    """

    def place(chunk: RowChunk) -> Tensor:
        factor = _of_groups(baselines.largest_log_factor(chunk, tile), chunk).amax(2)
        return _STEPS - 1 - ((factor - _LEAST) / _STEP).floor().clamp(0, _STEPS - 1).long()

    kept = _value_rows_by_cut(model, windows, keys, tile, place, _STEPS)
    cut = _nearest(kept, value_rows)
    factor = 0.0 if cut == _STEPS else math.exp(_LEAST + (_STEPS - cut) * _STEP)
    return factor, float(kept[cut])


def match_pages(
    model: PreTrainedModel, windows: Tensor, keys: float, value_rows: float, page: int
) -> tuple[int, float]:
    """The number of pages for a mean number of V rows per KV head, and the number that it gives on ``windows``.

    The arguments and the errors are those of `match_scale_factor`.
    """

    def place(chunk: RowChunk) -> Tensor:
        return _of_groups(baselines.page_rank(chunk, page), chunk).amin(2)

    kept = _value_rows_by_cut(model, windows, keys, page, place, -(-windows.shape[1] // page))
    count = _nearest(kept, value_rows)
    return count, float(kept[count])


def _wanted_value_rows(target: Reads, key_reads: KeyReads) -> float:
    """V rows with which a method of these K rows reads as many rows of K and V as the target."""
    key_rows = target.keys_mean if target.key_rows_mean is None else target.key_rows_mean
    beyond = key_rows + target.value_rows_mean - key_reads.per_key * target.keys_mean
    return beyond / (1 + key_reads.per_value_row)


def _nearest(kept: NDArray[np.float64], wanted: float) -> int:
    """The cut, from 1 on, whose number comes nearest; the sparser of two."""
    return 1 + int(np.abs(kept[1:] - wanted).argmin())


def _value_rows_by_cut(
    model: PreTrainedModel,
    windows: Tensor,
    keys: float,
    size: int,
    place: Callable[[RowChunk], Tensor],
    places: int,
) -> NDArray[np.float64]:
    """Mean V rows per row and KV head when the blocks of places below 0, 1, ..., ``places`` are read.

    ``place`` maps a chunk to the place of every block for every KV head, int64 [B, Hkv, rows, blocks].
    """
    observer = _Observer(_rows_around(keys, windows.shape[1]), size, place, places)
    device = model.get_input_embeddings().weight.device
    with torch.inference_mode(), attached(model, lambda layer: observer if layer >= DENSER_LAYERS else _Dense()):
        for window in windows:
            model(window[None].to(device), use_cache=False, logits_to_keep=1)
    return np.concatenate([[0.0], observer.keys.cumsum()]) / max(observer.rows, 1)


def _rows_around(keys: float, length: int) -> Tensor:
    """The rows of a window whose numbers of keys lie around ``keys``, as far to both sides as the window goes."""
    reach = min(length - keys, keys - 1)
    if reach < 0:
        raise TopThetaValueError(
            "calibration_windows", f"at least {math.ceil(keys)} tokens, the mean number of keys of the target's rows",
            f"{length}", "cut longer windows",
        )  # fmt: skip
    return torch.arange(math.ceil(keys - reach), math.floor(keys + reach) + 1) - 1


class _Dense:
    def attend(self, call: AttentionCall) -> Tensor:
        return call.dense()


class _Observer(_Dense):
    """Counts the keys of all blocks by their place, over all layers that it is given to; attention stays dense."""

    def __init__(self, wanted: Tensor, size: int, place: Callable[[RowChunk], Tensor], places: int) -> None:
        self._wanted, self._size, self._place = wanted, size, place
        self.keys = np.zeros(places)
        self.rows = 0

    def attend(self, call: AttentionCall) -> Tensor:
        where = {name: part for name, part in call.prompt.items() if name != "value"}
        for chunk in row_chunks(call.query, rows_wanted=self._wanted.to(call.query.device), **where):
            place = self._place(chunk)
            sizes = baselines.block_sizes(chunk, self._size).expand_as(place)
            # not every device has float64 or counts in the same order twice
            counted = torch.bincount(place.flatten().cpu(), sizes.flatten().cpu().double(), len(self.keys))
            self.keys += counted.numpy()
            self.rows += int((chunk.n > 0).sum()) * place.shape[1]
        return super().attend(call)


def _of_groups(blocks: Tensor, chunk: RowChunk) -> Tensor:
    """[B, Hkv, group, rows, blocks] from [B, Hq, rows, blocks]."""
    groups: Tensor = blocks.unflatten(1, (chunk.key.shape[1], -1))
    return groups
