"""The LSE of rows from a sample of their keys, with which `kernel.attend` tests probabilities in one pass over K.

`fallback/sampled.py` says which keys those are. A program serves one token of a KV head, for a block of query heads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..fallback import sampled
from .kernel_parts import (
    LN2,
    LOG2E,
    NEG_INF,
    add_sink,
    load_query,
    load_rows,
    locate,
    number_rows,
    rescale,
    scores_of,
    times_scales,
    visible_keys,
)

FIRST, STRIDED, NEWEST = (tl.constexpr(number) for number in (sampled.FIRST, sampled.STRIDED, sampled.NEWEST))


@triton.jit
def _sampled_places(slot, n):
    """Fill slots with the sample of a row of n keys: places, how many keys each stands for, which there are."""
    between = tl.maximum(n - FIRST - NEWEST, 0)
    j, newest = slot - FIRST, slot - FIRST - STRIDED
    is_first, is_newest = j < 0, newest >= 0
    strided = tl.where(between > STRIDED, (j.to(tl.int64) * between // STRIDED).to(tl.int32), j)
    place = tl.where(is_first, slot, tl.where(is_newest, n - 1 - newest, FIRST + strided))
    stands_for = tl.where(is_first | is_newest, 1.0, tl.maximum(between.to(tl.float32) / STRIDED, 1.0))
    there = tl.where(is_newest, (newest < NEWEST) & (place >= FIRST), is_first | (j < between)) & (place < n)
    return place, stands_for, there


@triton.jit
def sampled_lse(QUERY, KEY, KEY_SCALE, LENGTHS, STARTS, QUERY_LENGTHS, TABLE, SINK, LSE, scale, capacity, blocks,
                length_b, length_t, table_b, query_b, query_h, query_t, query_d, key_b, key_h, key_n, key_d,
                key_scale_b, key_scale_h, key_scale_n, key_scale_d, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
                HEADS: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr, HEAD_BLOCKS: tl.constexpr,
                TOKENS_PAD: tl.constexpr, ROWS_PAD: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr,
                PAGE: tl.constexpr, OF_TOKENS: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
                KEY_BY_CHANNEL: tl.constexpr):  # fmt: skip
    """Write the LSE of the rows of a token, [B, Hq, Sq], as its sample tells it, with the sink."""
    t, kv_head, batch_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, block = batch_block // HEAD_BLOCKS, batch_block % HEAD_BLOCKS
    _r, head, token, real = number_rows(block, HEADS, 1, GROUP, 1, ROWS_PAD)
    head += kv_head * GROUP
    token += t
    tokens = tl.arange(0, TOKENS_PAD)
    seen, start, _most = visible_keys(LENGTHS, STARTS, QUERY_LENGTHS, sequence, tokens, capacity, length_b, length_t,
                                      TOKENS, OF_TOKENS)  # fmt: skip
    n = tl.sum(tl.where(tokens == t, seen, 0), axis=0)
    element = tl.arange(0, D_PAD)
    filled = element < D
    query = load_query(QUERY, sequence, head, token, element, real, filled, query_b, query_h, query_t, query_d)
    maximum, mass = tl.full([ROWS_PAD], NEG_INF, tl.float32), tl.zeros([ROWS_PAD], tl.float32)
    for at in range(0, FIRST + STRIDED + NEWEST, BLOCK):
        position, stands_for, there = _sampled_places(at + tl.arange(0, BLOCK), n)
        place, row = locate(TABLE, sequence, start + position, there, table_b, blocks, PAGE)
        key = load_rows(KEY, KEY_SCALE, place, row, kv_head, element, there, filled, key_b, key_h, key_n, key_d,
                        key_scale_h, key_scale_d, QUERY.dtype.element_ty, KEY_BY_CHANNEL)  # fmt: skip
        a = times_scales(scores_of(query, key, scale, PRECISION, WIDE), KEY_SCALE, place, row, kv_head, there,
                         key_scale_b, key_scale_h, key_scale_n, KEY_BY_CHANNEL)  # fmt: skip
        a = tl.where(there[None, :], a, NEG_INF)
        maximum, finite, factor = rescale(maximum, tl.max(a, axis=1))
        mass = mass * factor + tl.sum(tl.exp2((a - finite[:, None]) * LOG2E) * stands_for[None, :], axis=1)
    lse = maximum + tl.log2(mass) * LN2
    if SINK is not None:
        lse = add_sink(lse, tl.load(SINK + head, mask=real, other=NEG_INF))
    tl.store(LSE + (sequence * KV_HEADS * GROUP + head) * TOKENS + token, lse, mask=real)
