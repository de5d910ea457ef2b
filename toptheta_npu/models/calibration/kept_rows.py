"""Counts what thresholds keep on held-out rows: at every k of a table, from one pass over the scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...calibration.blocks import ScoreBlocks
from ...calibration.row_statistics import rows_of_sequence
from ...fallback.compensation import score_threshold
from ...fallback.layout import count_group_rows, count_true
from ...fallback.reference import log_sum_exp, never_empty
from ...thresholds import ThresholdTable
from ...thresholds.lookup import Lookup
from ...thresholds.targets import Target
from ..fingerprint.model import check_table
from ..hook.architecture import num_key_value_heads
from ..hook.attach import check_model
from ..hook.attention import AttentionCall
from .observe import Progress, observe_model
from .texts import Sequences, checked_texts


class KeptRows(NamedTuple):
    """The elements that rows of a layer keep.

    Attributes:
        lengths: int64 [rows], number of keys of each row.
        kept: int32 [K, rows, Hq], elements kept at every k.
        value_rows: int32 [K, rows, Hkv], V rows needed: the union over the query heads of a KV head.
    """

    lengths: Tensor
    kept: Tensor
    value_rows: Tensor


def count_kept(
    model: PreTrainedModel,
    table: ThresholdTable,
    sequences: Sequences,
    *,
    row_fraction: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[int, KeptRows]:
    """Count the elements that ``table`` keeps at each of its k. The model runs once, dense, as over prompts.

    Args:
        model, sequences, row_fraction, seed, progress: as in `calibrate`.
        table: thresholds of this model.

    Returns:
        The rows of every layer that is sparse at some length.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate`; or the table belongs to
            another model.
    """
    check_model(model)
    check_table(model, table)
    texts = checked_texts(model, sequences, int(table.k[0]))
    counter = _Counter(table, max(map(len, texts)), num_key_value_heads(model))
    observe_model(
        model, texts, lambda rows, index: rows_of_sequence(rows, row_fraction, seed, index), counter,
        lambda _: AttentionCall.dense, progress,
    )  # fmt: skip
    return counter.result()


class _Counter:
    """Counts what rows keep."""

    def __init__(self, table: ThresholdTable, longest: int, kv_heads: int) -> None:
        lookup = Lookup(table, longest, discarded_mass=False)
        self._at = [lookup.at(Target(k)) for k in table.k.tolist()]
        self._placement, self._kv_heads = table.placement, kv_heads
        self._seen: dict[int, list[KeptRows]] = {}

    def look(self, layer: int, blocks: ScoreBlocks, learnable_sink: Tensor | None = None) -> tuple[int, KeptRows]:
        """Count on the device of the scores, and copy the counts to the host at the end."""
        theta = self._thresholds(layer, blocks.lengths).to(blocks.device)
        parts = [self._counts(scores, theta[:, :, rows], learnable_sink) for rows, scores in blocks]
        return layer, KeptRows(blocks.lengths, *(torch.cat(each, 1).cpu() for each in zip(*parts, strict=True)))

    def _thresholds(self, layer: int, lengths: Tensor) -> Tensor:
        """Look up the thresholds of rows at every k: float32 [K, Hq, rows]."""
        return torch.stack([at.rows(layer, lengths).T for at in self._at])

    def _counts(self, scores: Tensor, theta: Tensor, learnable_sink: Tensor | None) -> tuple[Tensor, Tensor]:
        """Count what rows with these scores keep, and their V rows: [K, rows, Hq] and [K, rows, Hkv]."""
        lse = log_sum_exp(scores[None], learnable_sink)[0] if self._placement == "post_softmax" else None
        counts, value_rows = [], []
        for own in theta:
            keep = scores > score_threshold(own, lse, self._placement)[..., None]
            kept = count_true(keep)
            # reading the counts saves work on a CPU; on any other device it would wait for the device
            if not scores.is_cpu or bool((kept == 0).any()):
                keep, kept = never_empty(keep, scores), kept.clamp_min(1)
            counts.append(kept.T)
            value_rows.append(count_group_rows(keep[None], self._kv_heads)[0].T)
        return torch.stack(counts), torch.stack(value_rows)

    def add(self, seen: tuple[int, KeptRows]) -> None:
        layer, rows = seen
        self._seen.setdefault(layer, []).append(rows)

    def result(self) -> dict[int, KeptRows]:
        return {
            layer: KeptRows(
                *(torch.cat(parts, dim=int(place > 0)) for place, parts in enumerate(zip(*rows, strict=True)))
            )
            for layer, rows in sorted(self._seen.items())
        }
