"""Sets methods without a k of their own so that they read as much as Top-θ at k read on the same task.

BLASST and pages are set in one pass over calibration text with dense attention. In its rows of about the length of the
task's, every block of keys is observed: from how large a number of pages, or up to which scale factor, a KV group of
query heads reads it. The numbers of keys of all blocks go into one histogram over that, of bounded size, and its
quantile is the answer. So the match is exact up to one step of the histogram for those rows, in layers from 2 on, with
dense attention before them. On another text, and with the method's own output in the layers before, it is as good as
the two are alike. Where even the sparsest setting reads more than is wanted (BLASST keeps every tile that raises the
running maximum), that setting is taken. What a method did read is always measured with its task.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaValueError
from ...fallback.prefill import RowChunk, row_chunks
from ...models.hook.attach import attached
from ...models.hook.attention import AttentionCall
from ..reads import Reads
from .blocks import block_sizes
from .method import DENSER_LAYERS, KeyReads


def wanted_value_rows(target: Reads, key_reads: KeyReads) -> float:
    """Count the V rows with which a method of these K rows reads as many rows of K and V as the target."""
    key_rows = target.keys_mean if target.key_rows_mean is None else target.key_rows_mean
    beyond = key_rows + target.value_rows_mean - key_reads.per_key * target.keys_mean
    return beyond / (1 + key_reads.per_value_row)


def nearest_cut(kept: NDArray[np.float64], wanted: float) -> int:
    """Find the cut, from 1 on, whose number comes nearest; the sparser of two."""
    return 1 + int(np.abs(kept[1:] - wanted).argmin())


def value_rows_by_cut(
    model: PreTrainedModel,
    windows: Tensor,
    keys: float,
    size: int,
    place: Callable[[RowChunk], Tensor],
    places: int,
) -> NDArray[np.float64]:
    """Average the V rows per row and KV head that are read by blocks of places below 0, 1, ..., ``places``.

    ``place`` maps a chunk to the place of every block for every KV head, int64 [B, Hkv, rows, blocks].
    """
    observer = _Observer(_rows_around(keys, windows.shape[1]), size, place, places)
    device = model.get_input_embeddings().weight.device
    with torch.inference_mode(), attached(model, lambda layer: observer if layer >= DENSER_LAYERS else _Dense()):
        for window in windows:
            model(window[None].to(device), use_cache=False, logits_to_keep=1)
    return np.concatenate([[0.0], observer.keys.cumsum()]) / max(observer.rows, 1)


def _rows_around(keys: float, length: int) -> Tensor:
    """Choose the rows of a window whose numbers of keys lie around ``keys``, as far as it goes to both sides."""
    reach = min(length - keys, keys - 1)
    if reach < 0:
        raise TopThetaValueError(
            "calibration_windows", f"at least {math.ceil(keys)} tokens, the mean number of keys of the target's rows",
            f"{length}", "cut longer windows",
        )  # fmt: skip
    return torch.arange(math.ceil(keys - reach), math.floor(keys + reach) + 1, device="cpu") - 1


class _Dense:
    def attend(self, call: AttentionCall) -> Tensor:
        return call.dense()


class _Observer(_Dense):
    """Count the keys of all blocks by their place, over all layers that it is given to; attention stays dense."""

    def __init__(self, wanted: Tensor, size: int, place: Callable[[RowChunk], Tensor], places: int) -> None:
        self._wanted, self._size, self._place = wanted, size, place
        self.keys = np.zeros(places)
        self.rows = 0

    def attend(self, call: AttentionCall) -> Tensor:
        where = {name: part for name, part in call.prompt.items() if name != "value"}
        for chunk in row_chunks(call.query, rows_wanted=self._wanted, **where):
            place = self._place(chunk)
            sizes = block_sizes(chunk, self._size).expand_as(place)
            # not every device has float64 or counts in the same order twice
            counted = torch.bincount(place.flatten().cpu(), sizes.flatten().cpu().double(), len(self.keys))
            self.keys += counted.numpy()
            self.rows += int((chunk.n > 0).sum()) * place.shape[1]
        return super().attend(call)
