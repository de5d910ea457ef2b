"""Decode that reads only the surviving V rows.

The steps and equations match `reference.incremental_attention`. This code reads less of the KV cache: only valid keys,
in any layout, and only the V rows that a query head keeps. If the query heads of a KV head together keep more than
`DENSE_ABOVE` of a sequence's keys, it multiplies all valid V rows: scattered reads of most rows cost more than one
sweep. The tokens of a sequence share each K row, and each V row of their union.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import Arguments
from .compensation import add_token_axis, compensate, expand_threshold, score_threshold
from .layout import (
    KeyValueCache,
    any_true,
    count_true,
    count_value_rows,
    drop_token_axis,
    in_layout,
    query_heads,
    row_lengths,
    valid_range,
)
from .reference import masses, select, valid_keys
from .sampled import compared_lse
from .scores import attention_scores

DENSE_ABOVE = 1 / 3


class _Rows(NamedTuple):
    """The rows of a decode step before V is read."""

    cache: KeyValueCache
    bounds: list[tuple[int, int]]  # first and last+1 valid key of each sequence
    n: Tensor  # [B, 1, Sq] valid keys
    scores: Tensor  # [B, Hq, Sq, S] float32, -inf outside the valid keys
    threshold: Tensor  # [B, Hq, Sq] in score units
    keep: Tensor  # [B, Hq, Sq, S]
    kept: Tensor  # [B, Hq, Sq]


def incremental_attention(arguments: Arguments) -> Tensor:
    """Run one decode step of Top-Theta attention; arguments and result as in `toptheta_npu.incremental_attention`.

    Arguments must already be checked. Their ``path`` forces "gather" or "dense" for the V product.
    """
    return _attend(arguments)[0]


def incremental_attention_with_stats(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run `incremental_attention` and return also lse, kept int32 [B, Hq] or [B, Hq, Sq], value_rows [B, Hkv] int32."""
    out, rows = _attend(arguments)
    value_rows = count_value_rows(any_true(rows.keep, 2), rows.cache.num_key_value_heads, rows.cache.head_dim)
    lse, kept = arguments.compensation.lse(rows.scores), rows.kept.int()
    return out, drop_token_axis(lse), drop_token_axis(kept), value_rows.int()


def _attend(arguments: Arguments) -> tuple[Tensor, _Rows]:
    """Compute the output in the query's layout; return it and its rows."""
    rows = _select_rows(arguments)
    maximum, weights, kept_mass, exact = masses(rows.scores, rows.keep)
    out = arguments.compensation.of_tokens().apply(
        _weighted_values(rows, weights, arguments.path), kept_mass, exact, rows.n, rows.kept, maximum, rows.threshold
    )
    return in_layout(out.to(arguments.query.dtype), arguments.input_layout), rows


def incremental_attention_partial(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run a decode step over some of a row's keys. Return (out = N/R float32, m, R, E, kept int32).

    The statistics are [B, Hq] or [B, Hq, Sq]. Where nothing passes, kept and R are 0, E is all the mass and out is V of
    the largest element. Post-softmax needs ``lse``, the LSE of the whole rows, in the same shape.
    """
    rows = _select_rows(arguments)
    maximum, weights, kept_mass, exact = masses(rows.scores, rows.keep)
    numerator = _weighted_values(rows, weights, arguments.path)
    out = compensate(numerator, kept_mass, torch.zeros_like(kept_mass), None)
    passed = any_true(rows.scores > rows.threshold[..., None], -1)
    return (
        in_layout(out, arguments.input_layout),
        drop_token_axis(maximum),
        drop_token_axis(torch.where(passed, kept_mass, 0.0)),
        drop_token_axis(torch.where(passed, exact, exact + kept_mass)),
        drop_token_axis(torch.where(passed, rows.kept, 0).int()),
    )


def _select_rows(a: Arguments) -> _Rows:
    """Compute the scores of every row and select the elements it keeps."""
    heads = query_heads(a.query, a.input_layout, a.num_heads)
    cache = KeyValueCache.of(a)
    starts, lengths = valid_range(heads, cache.capacity, a.key_start, a.actual_seq_lengths)
    # a part is told which keys each token sees; for whole rows it follows from the lengths
    n = lengths if lengths.dim() == 2 else row_lengths(lengths, a.actual_query_lengths, heads.shape[2])
    bounds = list(zip(starts.tolist(), (starts + n.amax(1)).tolist(), strict=True))
    scores = attention_scores(heads.float() * a.scale_value, cache, bounds)
    if heads.shape[2] > 1:  # the last token sets the bounds
        scores.masked_fill_(~valid_keys(scores.shape[3], n, starts), -torch.inf)
    row_lse = (
        compared_lse(a.placement, scores, n, starts, a.learnable_sink) if a.lse is None else add_token_axis(a.lse, 3)
    )
    theta = score_threshold(expand_threshold(a.threshold, scores.shape[:3]), row_lse, a.placement)
    keep = select(scores, theta)
    return _Rows(cache, bounds, n[:, None], scores, theta, keep, count_true(keep))


def _weighted_values(rows: _Rows, weights: Tensor, path: str) -> Tensor:
    """Compute N [B, Hq, Sq, D] float32, the sum of weights [B, Hq, Sq, S] times V rows."""
    cache, tokens = rows.cache, weights.shape[2]
    by_kv_head = (cache.num_key_value_heads, -1)
    weights = weights.flatten(1, 2).unflatten(1, by_kv_head)  # [B, Hkv, g * Sq, S]
    union = any_true(rows.keep.flatten(1, 2).unflatten(1, by_kv_head), 2)  # [B, Hkv, S]: V rows that some row keeps
    above = {"gather": math.inf, "dense": -math.inf}.get(path, DENSE_ABOVE)
    dense = count_true(union) > above * rows.n.amax(2).float()  # [B, Hkv]

    gathered = union & ~dense[..., None]
    sequence, head, position = gathered.nonzero(as_tuple=True)
    values = cache.value.gather(sequence, head, position)  # [V rows, D]
    weights_of_row = weights[sequence, head, :, position]  # [V rows, g * Sq]
    counts = count_true(gathered).flatten().tolist()
    pairs = zip(weights_of_row.split(counts), values.split(counts), strict=True)
    out: Tensor = torch.stack([weight.T @ value for weight, value in pairs]).unflatten(0, dense.shape)

    for b, h in dense.nonzero().tolist():
        start, end = rows.bounds[b]
        out[b, h] = weights[b, h, :, start:end] @ cache.value.of_head(b, h, start, end)
    by_token: Tensor = out.flatten(1, 2).unflatten(1, (-1, tokens))
    return by_token
