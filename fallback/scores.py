"""The scores of a decode step: query times every valid K row, in float32 whatever the dtype of the cache.

On a CPU this product sets the pace of the step, and which form of it is fast depends on dtype and group size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import KeyValueCache
from .scratch import scratch

_BATCH_ROWS = 256  # K rows in a piece of a batched product
_UPCAST_ROWS = 2048  # K rows converted to float32 at a time: the buffer stays in the L2 cache


def attention_scores(query: Tensor, cache: KeyValueCache, bounds: list[tuple[int, int]]) -> Tensor:
    """[B, Hq, span] float32 scores of the scaled query [B, Hq, D], -inf outside the bounds."""
    batch, heads, _ = query.shape
    kv_heads = cache.num_key_value_heads
    span = max(1, *(end for _, end in bounds)) if bounds else 1
    full = all(bound == (0, span) for bound in bounds)
    shape = (batch, kv_heads, heads // kv_heads, span)
    scores = scratch("scores", shape, torch.float32, query.device)
    if not full:
        scores.fill_(-torch.inf)
    grouped = query.unflatten(1, (kv_heads, -1))
    for sequence, (start, end) in enumerate(bounds):
        if start < end:
            keys = cache.key_rows(sequence, start, end)
            _score_sequence(grouped[sequence], keys, scores[sequence, :, :, start:end])
    return scores.flatten(1, 2)


def _score_sequence(query: Tensor, keys: Tensor, out: Tensor) -> None:
    """out [Hkv, g, n] = query [Hkv, g, D] times keys [Hkv, n, D], in float32 whatever the dtype of the keys."""
    if keys.device.type != "cpu":
        torch.bmm(query, keys.to(query.dtype).transpose(1, 2), out=out)
    elif keys.dtype != query.dtype:
        _score_converted(query, keys, out)
    elif query.shape[1] in (4, 5) and keys.shape[1] >= 4096 and keys.shape[2] >= 128:
        _score_in_batches(query, keys, out)
    else:
        torch.bmm(query, keys.transpose(1, 2), out=out)


def _score_converted(query: Tensor, keys: Tensor, out: Tensor) -> None:
    """K converted block by block stays in the L2 cache; a half-precision product would round the scores."""
    heads, n, head_dim = keys.shape
    block = scratch("K rows", (min(_UPCAST_ROWS, n), head_dim), query.dtype, query.device)
    for head in range(heads):
        for first in range(0, n, _UPCAST_ROWS):
            part = keys[head, first : first + _UPCAST_ROWS]
            rows = block[: len(part)].copy_(part)
            torch.mm(query[head], rows.t(), out=out[head, :, first : first + len(part)])


def _score_in_batches(query: Tensor, keys: Tensor, out: Tensor) -> None:
    """Four or five query heads with a long K at once are slow in BLAS; with many short pieces of it they are not."""
    heads, n, _ = keys.shape
    whole = n - n % _BATCH_ROWS
    pieces = keys[:, :whole].unflatten(1, (-1, _BATCH_ROWS))
    shape = (*pieces.shape[:2], query.shape[1], _BATCH_ROWS)
    products = scratch("products", shape, query.dtype, query.device)
    for head in range(heads):
        repeated = query[head].expand(pieces.shape[1], -1, -1)
        torch.bmm(repeated, pieces[head].transpose(1, 2), out=products[head])
    out[:, :, :whole].unflatten(2, (-1, _BATCH_ROWS)).copy_(products.transpose(1, 2))
    torch.bmm(query, keys[:, whole:].transpose(1, 2), out=out[:, :, whole:])
