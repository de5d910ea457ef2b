"""Decode that reads only the surviving V rows.

The steps and equations are those of `reference.incremental_attention`. What differs is what is read of the KV cache:
valid keys alone, in any layout, and only the V rows that a query head keeps. Where the query heads of a KV head
together keep more than `DENSE_ABOVE` of a sequence's keys, all its valid V rows are multiplied instead: scattered reads
of most rows cost more than one sweep.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import Arguments
from .compensation import compensate, score_threshold
from .layout import KeyValueCache, any_true, count_true, count_value_rows, in_layout, query_heads, valid_range
from .reference import masses, select
from .scores import attention_scores

DENSE_ABOVE = 1 / 3


class _Rows(NamedTuple):
    """The rows of a decode step before V is read."""

    cache: KeyValueCache
    bounds: list[tuple[int, int]]  # first and last+1 valid key of each sequence
    n: Tensor  # [B, 1] valid keys
    scores: Tensor  # [B, Hq, S] float32, -inf outside the valid keys
    threshold: Tensor  # [B, Hq] in score units
    keep: Tensor  # [B, Hq, S]
    kept: Tensor  # [B, Hq]


def incremental_attention(arguments: Arguments) -> Tensor:
    """Run one decode step of Top-Theta attention; arguments and result as `toptheta_npu.incremental_attention`.

    Arguments are taken as already checked. Their ``path`` forces "gather" or "dense" for the V product.
    """
    return _attend(arguments)[0]


def incremental_attention_with_stats(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run `incremental_attention` and return also lse [B, Hq], kept [B, Hq] int32, value_rows [B, Hkv] int32."""
    out, rows = _attend(arguments)
    value_rows = count_value_rows(rows.keep, rows.cache.num_key_value_heads, rows.cache.head_dim)
    return out, arguments.compensation.lse(rows.scores), rows.kept.int(), value_rows.int()


def _attend(arguments: Arguments) -> tuple[Tensor, _Rows]:
    """Compute the output in the query's layout, and return also the rows that it came from."""
    rows = _select_rows(arguments)
    maximum, weights, kept_mass, exact = masses(rows.scores, rows.keep)
    out = arguments.compensation.apply(
        _weighted_values(rows, weights, arguments.path), kept_mass, exact, rows.n, rows.kept, maximum, rows.threshold
    )
    return in_layout(out.to(arguments.query.dtype), arguments.input_layout), rows


def incremental_attention_partial(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run a decode step over some of a row's keys. Return (out = N/R float32, m, R, E [B, Hq], kept int32).

    Where nothing passes, kept and R are 0, E is all the mass and out is V of the largest element.
    ``lse`` [B, Hq] is the whole row's, needed post-softmax.
    """
    rows = _select_rows(arguments)
    maximum, weights, kept_mass, exact = masses(rows.scores, rows.keep)
    numerator = _weighted_values(rows, weights, arguments.path)
    out = compensate(numerator, kept_mass, torch.zeros_like(kept_mass), None)
    passed = any_true(rows.scores > rows.threshold[..., None], -1)
    return (
        in_layout(out, arguments.input_layout),
        maximum,
        torch.where(passed, kept_mass, 0.0),
        torch.where(passed, exact, exact + kept_mass),
        torch.where(passed, rows.kept, 0).int(),
    )


def _select_rows(a: Arguments) -> _Rows:
    """Compute the scores of every row and select the elements it keeps."""
    heads = query_heads(a.query, a.input_layout, a.num_heads)
    cache = KeyValueCache.of(a)
    starts, lengths = valid_range(heads, cache.capacity, a.key_start, a.actual_seq_lengths)
    bounds = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    scores = attention_scores(heads.float() * a.scale_value, cache, bounds)
    row_lse = a.lse
    if a.placement == "post_softmax" and row_lse is None:
        row_lse = a.compensation.lse(scores)
    theta = score_threshold(a.threshold.expand(scores.shape[:2]), row_lse, a.placement)
    keep = select(scores, theta)
    return _Rows(cache, bounds, lengths[:, None], scores, theta, keep, count_true(keep))


def _weighted_values(rows: _Rows, weights: Tensor, path: str) -> Tensor:
    """Compute N [B, Hq, D] float32, the sum of weights [B, Hq, S] times V rows."""
    cache = rows.cache
    by_kv_head = (cache.num_key_value_heads, -1)
    weights = weights.unflatten(1, by_kv_head)  # [B, Hkv, g, S]
    union = any_true(rows.keep.unflatten(1, by_kv_head), 2)  # [B, Hkv, S]: V rows that some query head keeps
    above = {"gather": math.inf, "dense": -math.inf}.get(path, DENSE_ABOVE)
    dense = count_true(union) > above * rows.n  # [B, Hkv]

    gathered = union & ~dense[..., None]
    sequence, head, position = gathered.nonzero(as_tuple=True)
    values = cache.value.gather(sequence, head, position)  # [V rows, D]
    weights_of_row = weights[sequence, head, :, position]  # [V rows, g]
    counts = count_true(gathered).flatten().tolist()
    pairs = zip(weights_of_row.split(counts), values.split(counts), strict=True)
    out: Tensor = torch.stack([weight.T @ value for weight, value in pairs]).unflatten(0, dense.shape)  # [B, Hkv, g, D]

    for b, h in dense.nonzero().tolist():
        start, end = rows.bounds[b]
        out[b, h] = weights[b, h, :, start:end] @ cache.value.of_head(b, h, start, end)
    return out.flatten(1, 2)
