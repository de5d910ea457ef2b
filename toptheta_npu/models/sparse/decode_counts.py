"""What the statistics of a decode step need and the operator does not count."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._value_checks import are_seen
from ...fallback.compensation import score_threshold
from ...fallback.layout import count_group_rows, count_wanted_by, head_block
from ...fallback.reference import attention_scores, log_sum_exp, select, valid_keys
from ...operator import incremental_attention_partial
from ..hook.attention import AttentionCall


def empty_rows(call: AttentionCall, threshold: Tensor, lse: Tensor, kept: Tensor, placement: str) -> Tensor:
    """Find the rows of a decode step in which nothing passed, bool [B, Hq]. There ``kept`` counts the stand-in alone.

    The operator for a part of a row has no stand-in. The whole row is a part, too.
    """
    if are_seen(kept) and not (kept == 1).any():
        return torch.zeros_like(kept, dtype=torch.bool)
    passed = incremental_attention_partial(
        call.query, call.key, call.value, threshold,
        actual_seq_lengths=call.rows.lengths, key_start=call.rows.starts, scale_value=call.scaling,
        placement=placement, lse=lse if placement == "post_softmax" else None, **call.antiquant,
    ).kept  # fmt: skip
    return (kept == 1) & (passed == 0)


def group_rows(
    call: AttentionCall, threshold: Tensor, value_rows: Tensor, placement: str, popularity: bool
) -> tuple[Tensor, Tensor | None]:
    """Count the V rows that a decode step needs per KV head, [B, Hkv], and how many heads want how many of them.

    The first are the union over all heads of a group. The operator's own ``value_rows`` [B, Hkv] are that, unless a
    group is larger than its head block. The second, [B, Hkv, Hq / Hkv], are counted only for ``popularity``.
    """
    heads, kv_heads, head_dim = call.query.shape[1], call.key.shape[1], call.query.shape[3]
    counted = heads // kv_heads <= head_block(head_dim)
    if counted and not popularity:
        return value_rows, None
    keep = _kept_elements(call, threshold, placement)
    rows = value_rows if counted else count_group_rows(keep, kv_heads)
    return rows, count_wanted_by(keep, kv_heads) if popularity else None


def _kept_elements(call: AttentionCall, threshold: Tensor, placement: str) -> Tensor:
    """Compute which elements a decode step keeps, bool [B, Hq, S]. The operator does not tell them."""
    counts = call.rows.counts[:, 0]
    starts = torch.zeros_like(counts) if call.rows.starts is None else call.rows.starts
    visible = valid_keys(call.key.shape[2], counts, starts)
    scale = call.query.shape[3] ** -0.5 if call.scaling is None else call.scaling
    key = call.dequantised()[0].float()
    scores = attention_scores(call.query[:, :, 0].float(), key, scale).masked_fill(~visible, -torch.inf)
    return select(scores, score_threshold(threshold, log_sum_exp(scores, call.learnable_sink), placement))
