"""Decode that reads only the surviving V rows.

The steps and equations are those of `reference.incremental_attention`. What differs is what is read of the KV cache:
valid keys alone, in any layout, and only the V rows that a query head keeps. Where the query heads of a KV head
together keep more than `DENSE_ABOVE` of a sequence's keys, all its valid V rows are multiplied instead: scattered reads
of most rows cost more than one sweep.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .compensation import compensate, estimate_discarded_mass, score_threshold
from .layout import KeyValueCache, any_true, count_true, count_value_rows, in_layout, query_heads, valid_range
from .reference import log_sum_exp, masses, select
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


def incremental_attention(*arguments: Any, **options: Any) -> Tensor:
    """One decode step of Top-Theta attention; arguments and result as `toptheta_npu.incremental_attention`.

    Arguments are taken as already checked. ``path`` forces "gather" or "dense" for the V product.
    """
    return _attend(*arguments, **options)[0]


def incremental_attention_with_stats(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `incremental_attention`, and (lse [B, Hq], kept [B, Hq] int32, value_rows [B, Hkv] int32)."""
    out, rows = _attend(*arguments, **options)
    value_rows = count_value_rows(rows.keep, rows.cache.num_key_value_heads, rows.cache.head_dim)
    return out, log_sum_exp(rows.scores), rows.kept.int(), value_rows.int()


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    block_table: Tensor | None = None,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    path: str = "auto",
) -> tuple[Tensor, _Rows]:
    """The output in the query's layout, and the rows that it came from."""
    rows = _select_rows(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, None,
        num_heads, num_key_value_heads, input_layout, scale_value, placement,
    )  # fmt: skip
    maximum, weights, kept_mass, exact = masses(rows.scores, rows.keep)
    estimate = estimate_discarded_mass(
        sdc, exact, rows.n, rows.kept, maximum, rows.threshold, sdc_gamma, discarded_mass
    )
    out = compensate(_weighted_values(rows, weights, path), kept_mass, estimate, value_mean)
    return in_layout(out.to(query.dtype), input_layout), rows


def incremental_attention_partial(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None = None,
    key_start: Tensor | None = None,
    block_table: Tensor | None = None,
    lse: Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str = "BNSD",
    scale_value: float | None = None,
    placement: str = "pre_softmax",
    path: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The part of a decode step over some of a row's keys: (out = N/R float32, m, R, E [B, Hq], kept int32).

    Where nothing passes, kept and R are 0, E is all the mass and out is V of the largest element.
    ``lse`` [B, Hq] is the whole row's, needed post-softmax.
    """
    rows = _select_rows(
        query, key, value, threshold, actual_seq_lengths, key_start, block_table, lse,
        num_heads, num_key_value_heads, input_layout, scale_value, placement,
    )  # fmt: skip
    maximum, weights, kept_mass, exact = masses(rows.scores, rows.keep)
    out = compensate(_weighted_values(rows, weights, path), kept_mass, torch.zeros_like(kept_mass), None)
    passed = any_true(rows.scores > rows.threshold[..., None], -1)
    return (
        in_layout(out, input_layout),
        maximum,
        torch.where(passed, kept_mass, 0.0),
        torch.where(passed, exact, exact + kept_mass),
        torch.where(passed, rows.kept, 0).int(),
    )


def _select_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: Tensor,
    actual_seq_lengths: Tensor | None,
    key_start: Tensor | None,
    block_table: Tensor | None,
    row_lse: Tensor | None,
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str,
    scale_value: float | None,
    placement: str,
) -> _Rows:
    """The scores of every row and the elements it keeps; ``row_lse`` as in `reference.incremental_attention`."""
    heads = query_heads(query, input_layout, num_heads)
    cache = KeyValueCache.from_layout(key, value, block_table, input_layout, num_key_value_heads)
    starts, lengths = valid_range(heads, cache.capacity, key_start, actual_seq_lengths)
    bounds = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    scale = 1 / math.sqrt(cache.head_dim) if scale_value is None else scale_value
    scores = attention_scores(heads.float() * scale, cache, bounds)
    if placement == "post_softmax" and row_lse is None:
        row_lse = log_sum_exp(scores)
    theta = score_threshold(threshold.expand(scores.shape[:2]), row_lse, placement)
    keep = select(scores, theta)
    return _Rows(cache, bounds, lengths[:, None], scores, theta, keep, count_true(keep))


def _weighted_values(rows: _Rows, weights: Tensor, path: str) -> Tensor:
    """N [B, Hq, D] float32, the sum of weights [B, Hq, S] times V rows."""
    cache = rows.cache
    by_kv_head = (cache.num_key_value_heads, -1)
    weights = weights.unflatten(1, by_kv_head)  # [B, Hkv, g, S]
    union = any_true(rows.keep.unflatten(1, by_kv_head), 2)  # [B, Hkv, S]: V rows that some query head keeps
    above = {"gather": math.inf, "dense": -math.inf}.get(path, DENSE_ABOVE)
    dense = count_true(union) > above * rows.n  # [B, Hkv]

    gathered = union & ~dense[..., None]
    sequence, head, position = gathered.nonzero(as_tuple=True)
    values = cache.gather_values(sequence, head, position).float()  # [V rows, D]
    weights_of_row = weights[sequence, head, :, position]  # [V rows, g]
    counts = count_true(gathered).flatten().tolist()
    pairs = zip(weights_of_row.split(counts), values.split(counts), strict=True)
    out: Tensor = torch.stack([weight.T @ value for weight, value in pairs]).unflatten(0, dense.shape)  # [B, Hkv, g, D]

    for b, h in dense.nonzero().tolist():
        start, end = rows.bounds[b]
        out[b, h] = weights[b, h, :, start:end] @ cache.value_rows(b, h, start, end).float()
    return out.flatten(1, 2)
