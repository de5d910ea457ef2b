"""What the kernels share: the keys that a row sees, where cache rows lie, how they are read and multiplied."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEG_INF = tl.constexpr(float("-inf"))
#: A number whose inverse is one of float32, too.
SMALLEST = tl.constexpr(2.0**-100)
#: A split has at least SPLIT_KEYS keys, and a row up to SPLITS of them; one with more than LONG keys LONG_SPLITS.
SPLIT_KEYS, SPLITS, LONG, LONG_SPLITS = (tl.constexpr(number) for number in (512, 32, 65536, 64))


@triton.jit
def visible_keys(LENGTHS, STARTS, QUERY_LENGTHS, sequence, token, capacity, length_b, length_t, TOKENS: tl.constexpr,
          OF_TOKENS: tl.constexpr):  # fmt: skip
    """Count the keys that each row of a token sees. Return also the first valid one, and the most of any token."""
    start = 0
    if STARTS is not None:
        start = tl.minimum(tl.maximum(tl.load(STARTS + sequence).to(tl.int32), 0), capacity)
    room = capacity - start
    if OF_TOKENS:  # of parts: each token is told
        n = tl.load(LENGTHS + sequence * length_b + token * length_t, mask=token < TOKENS, other=0).to(tl.int32)
        n = tl.minimum(tl.maximum(n, 0), room)
        return n, start, tl.max(n, axis=0)
    most = room
    if LENGTHS is not None:
        most = tl.minimum(tl.maximum(tl.load(LENGTHS + sequence * length_b).to(tl.int32), 0), room)
    real = tl.minimum(most, TOKENS)
    if QUERY_LENGTHS is not None:
        real = tl.minimum(tl.maximum(tl.load(QUERY_LENGTHS + sequence).to(tl.int32), 0), real)
    n = tl.where(token < real, most - real + 1 + token, 0)
    return n, start, tl.where(real > 0, most, 0)


@triton.jit
def split_row(most, BLOCK: tl.constexpr):
    """Divide a row into splits by its length alone, so that it gives the same bits in every batch.

    Return how many there are, and the keys of each, a multiple of BLOCK; `plan.largest_splits` bounds both.
    """
    wanted = tl.minimum(tl.cdiv(most, SPLIT_KEYS), tl.where(most > LONG, LONG_SPLITS, SPLITS))
    keys = tl.maximum(tl.cdiv(tl.cdiv(most, BLOCK), tl.maximum(wanted, 1)), 1) * BLOCK
    return tl.cdiv(most, keys), keys


@triton.jit
def own_splits(splits):
    """Give a program its splits: the first one, and the one after the last."""
    each = tl.cdiv(splits, tl.num_programs(0))
    first = tl.program_id(0) * each
    return first, tl.minimum(first + each, splits)


@triton.jit
def locate(TABLE, sequence, position, inside, table_b, blocks, PAGE: tl.constexpr):
    """Find the block (or sequence) that holds cache rows, and their place in it."""
    if PAGE > 0:
        block = tl.load(TABLE + sequence * table_b + position // PAGE, mask=inside, other=0)
        return tl.minimum(tl.maximum(block, 0), blocks - 1).to(tl.int64), (position % PAGE).to(tl.int64)
    else:
        return position.to(tl.int64) * 0 + sequence, position.to(tl.int64)


@triton.jit
def load_rows(ROWS, SCALE, block, row, head, element, wanted, filled, rows_b, rows_h, rows_n, rows_d, scale_h, scale_d,
          DTYPE: tl.constexpr, BY_CHANNEL: tl.constexpr):  # fmt: skip
    """Load cache rows [keys, D]: those that are wanted, others are 0.

    int8 rows come in DTYPE, which holds their numbers exactly; with scales of channels, multiplied by them, in float32.
    """
    at = block * rows_b + head.to(tl.int64) * rows_h + row * rows_n
    tile = tl.load(ROWS + at[:, None] + element[None, :] * rows_d, mask=wanted[:, None] & filled[None, :], other=0.0)
    if SCALE is not None:
        if BY_CHANNEL:
            scale = tl.load(SCALE + head * scale_h + element * scale_d, mask=filled, other=0.0)
            tile = tile.to(tl.float32) * scale.to(tl.float32)[None, :]
        else:
            tile = tile.to(tl.float32).to(DTYPE)  # the interpreter knows no way from int8 to bfloat16
    return tile


@triton.jit
def times_scales(x, SCALE, block, row, head, wanted, scale_b, scale_h, scale_n, BY_CHANNEL: tl.constexpr):
    """Multiply what there is of keys, [.., keys], by the scales of int8 rows that have one each."""
    BY_KEY: tl.constexpr = SCALE is not None and not BY_CHANNEL
    if BY_KEY:
        scale = tl.load(SCALE + block * scale_b + head * scale_h + row * scale_n, mask=wanted, other=0.0)
        x = x * scale.to(tl.float32)[None, :]
    return x


@triton.jit
def load_query(QUERY, sequence, head, token, element, real, filled, query_b, query_h, query_t, query_d):
    """Load the query rows of a block, [R, D]."""
    at = QUERY + sequence.to(tl.int64) * query_b + head[:, None] * query_h + token[:, None] * query_t
    return tl.load(at + element[None, :] * query_d, mask=real[:, None] & filled[None, :], other=0.0)


@triton.jit
def dot_product(x, y, PRECISION: tl.constexpr, WIDE: tl.constexpr):
    """Multiply in float32 sums. WIDE is for the interpreter, whose product takes no bfloat16."""
    if WIDE:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def sum_of_rows(weight, value, PRECISION: tl.constexpr, WIDE: tl.constexpr, SCALED: tl.constexpr):
    """Add up V rows [keys, D] by weights [R, keys] in float32. SCALED: scales of int8 rows are in the weights.

    Such weights are the sum of two 16-bit numbers, since one alone is less exact than the output's dtype: a row by
    itself would show it. They are brought near 1 first, as products with small scales leave the range of float16.
    """
    if SCALED:
        largest = tl.max(tl.max(tl.abs(weight), axis=1), axis=0)
        unit = tl.exp2(-tl.floor(tl.log2(tl.maximum(largest, SMALLEST))))
        weight *= unit
        high = weight.to(value.dtype)
        low = (weight - high.to(tl.float32)).to(value.dtype)
        return (dot_product(high, value, PRECISION, WIDE) + dot_product(low, value, PRECISION, WIDE)) / unit
    else:
        return dot_product(weight.to(value.dtype), value, PRECISION, WIDE)


@triton.jit
def scores_of(query, key, scale, PRECISION: tl.constexpr, WIDE: tl.constexpr):
    """Compute a = scale q·k [R, keys]."""
    return dot_product(query.to(key.dtype), tl.trans(key), PRECISION, WIDE) * scale


@triton.jit
def rescale(maximum, largest):
    """Raise the running maximum m to the largest new score. Return it, one to subtract, and the factor of old sums."""
    new = tl.maximum(maximum, largest)
    finite = tl.where(new == NEG_INF, 0.0, new)
    return new, finite, tl.exp2((maximum - finite) * LOG2E)


@triton.jit
def number_rows(block, HEADS: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr, TOKENS_PAD: tl.constexpr,
                 ROWS_PAD: tl.constexpr):  # fmt: skip
    """Number a block's rows: r, their query heads in the group, tokens, and which there are."""
    padded = tl.arange(0, ROWS_PAD)
    in_block, token = padded // TOKENS_PAD, padded % TOKENS_PAD
    head = block * HEADS + in_block
    return in_block * TOKENS + token, head, token, (in_block < HEADS) & (head < GROUP) & (token < TOKENS)


@triton.jit
def add_sink(lse, sink):
    """Add the sink's logit to LSEs; rows without keys stay at -inf."""
    larger, smaller = tl.maximum(lse, sink), tl.minimum(lse, sink)
    both = larger + tl.log2(1.0 + tl.exp2((smaller - larger) * LOG2E)) * LN2
    return tl.where((sink == NEG_INF) | (lse == NEG_INF) | (lse != lse), lse, both)
