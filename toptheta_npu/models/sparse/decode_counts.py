"""Counts the statistics of a decode step that the operator does not count."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..._value_checks import host_can_read
from ...fallback.compensation import score_threshold
from ...fallback.layout import any_true, count_group_rows, head_block
from ...fallback.reference import attention_scores, select, valid_keys
from ...fallback.sampled import compared_lse
from ..hook.attention import AttentionCall


def decode_counts(
    call: AttentionCall, threshold: Tensor, kept: Tensor, value_rows: Tensor, placement: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Count what a step kept, row by row, from its thresholds and what the operator counted.

    Returns:
        kept [B, Hq, Q], the V rows that each KV head needs [B, Hkv, Q], and where nothing passed [B, Hq, Q].
    """
    if call.query.shape[2] == 1:
        rows = _group_rows(call, threshold, value_rows, placement)
        empty = _empty_rows(call, threshold, kept, placement)
        return kept[..., None], rows[..., None], empty[..., None]
    alone: list[tuple[Tensor, Tensor]] = []
    for token in range(call.query.shape[2]):
        query = call.query[:, :, token : token + 1]
        theta, own_kept = threshold[:, :, token], kept[:, :, token]
        step = replace(call, query=query, rows=call.rows.of_token(token))
        # the operator counted the V rows of all tokens together
        needed = _group_rows(step, theta, None, placement)
        alone.append((needed, _empty_rows(step, theta, own_kept, placement)))
    value_rows, empty = (torch.stack(tokens, -1) for tokens in zip(*alone, strict=True))
    return kept, value_rows, empty


def _empty_rows(call: AttentionCall, threshold: Tensor, kept: Tensor, placement: str) -> Tensor:
    """Find the rows of a step in which nothing passed, bool [B, Hq]. There ``kept`` counts the stand-in alone."""
    if host_can_read(kept) and not (kept == 1).any():
        return torch.zeros_like(kept, dtype=torch.bool)
    scores, theta = _scores_and_threshold(call, threshold, placement)
    return (kept == 1) & ~any_true(scores > theta[..., None], -1)


def _group_rows(call: AttentionCall, threshold: Tensor, value_rows: Tensor | None, placement: str) -> Tensor:
    """Count the V rows that a step of one token needs per KV head, [B, Hkv]: the union over all heads of a group.

    The operator's own ``value_rows`` [B, Hkv] are that, unless a group is larger than its head block.
    """
    heads, kv_heads, head_dim = call.query.shape[1], call.key.shape[1], call.query.shape[3]
    if value_rows is not None and heads // kv_heads <= head_block(head_dim):
        return value_rows
    return count_group_rows(select(*_scores_and_threshold(call, threshold, placement)), kv_heads)


def _scores_and_threshold(call: AttentionCall, threshold: Tensor, placement: str) -> tuple[Tensor, Tensor]:
    """Compute the scores of a decode step, [B, Hq, S], and its thresholds as scores. The operator returns neither."""
    counts = call.rows.counts[:, 0]
    starts = torch.zeros_like(counts) if call.rows.starts is None else call.rows.starts
    visible = valid_keys(call.key.shape[2], counts, starts)
    scale = call.query.shape[3] ** -0.5 if call.scaling is None else call.scaling
    key = call.dequantised()[0].float()
    scores = attention_scores(call.query[:, :, 0].float(), key, scale).masked_fill(~visible, -torch.inf)
    lse = compared_lse(placement, scores, counts, starts, call.learnable_sink)
    return scores, score_threshold(threshold, lse, placement)
