"""The decode step in Triton: every program reads the keys of a split, and the V rows that some row of it keeps.

A program serves one KV head of one sequence and a block of its rows: up to 8 query heads (4 above head_dim 256) with
all their tokens. `attend` runs the online softmax over a split of the keys, `join` adds up the splits and compensates.
Post-softmax the test needs the LSE of the whole row, so `score` goes first: it stores the scores, and `attend` reads
those instead of K. Where a sample of keys tells the LSE, the kernel of `kernel_sampled.py` goes first, and `attend`
reads K. Names of sums are those of `fallback/reference.py`; a block's rows are r = head * TOKENS + token, padded in
registers to powers of 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .kernel_parts import (
    LN2,
    LOG2E,
    NEG_INF,
    add_sink,
    load_query,
    load_rows,
    locate,
    number_rows,
    own_splits,
    rescale,
    scores_of,
    split_row,
    sum_of_rows,
    times_scales,
    visible_keys,
)

POST = tl.constexpr(1)
#: Where a row has no largest score.
NOWHERE = tl.constexpr(0x7FFFFFFF)
NO_SDC, EXACT, EXP_THRESHOLD, OFFLINE = (tl.constexpr(number) for number in range(4))


@triton.jit
def score(QUERY, KEY, KEY_SCALE, LENGTHS, STARTS, QUERY_LENGTHS, TABLE, STORED, MAXIMUM, MASS,
          scale, capacity, blocks, length_b, length_t, table_b, query_b, query_h, query_t, query_d,
          key_b, key_h, key_n, key_d, key_scale_b, key_scale_h, key_scale_n, key_scale_d,
          KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr,
          HEAD_BLOCKS: tl.constexpr, TOKENS_PAD: tl.constexpr, ROWS_PAD: tl.constexpr,
          D_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
          PAGE: tl.constexpr, OF_TOKENS: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
          KEY_BY_CHANNEL: tl.constexpr):  # fmt: skip
    """Store the scores of a split's keys [.., rows, capacity], their largest and the sum of exp(a - largest)."""
    kv_head, batch_block = tl.program_id(1), tl.program_id(2)
    sequence, block = batch_block // HEAD_BLOCKS, batch_block % HEAD_BLOCKS
    r, head, token, real = number_rows(block, HEADS, TOKENS, GROUP, TOKENS_PAD, ROWS_PAD)
    n, start, most = visible_keys(LENGTHS, STARTS, QUERY_LENGTHS, sequence, token, capacity, length_b, length_t,
                                  TOKENS, OF_TOKENS)  # fmt: skip
    n = tl.where(real, n, 0)
    splits, keys = split_row(most, BLOCK)
    first_split, last_split = own_splits(splits)
    if first_split < last_split:
        element = tl.arange(0, D_PAD)
        filled = element < D
        query = load_query(QUERY, sequence, kv_head * GROUP + head, token, element, real, filled, query_b, query_h,
                           query_t, query_d)  # fmt: skip
        unit = (sequence * KV_HEADS + kv_head) * HEAD_BLOCKS + block
        stored = STORED + (unit.to(tl.int64) * (HEADS * TOKENS) + r) * capacity
        for split in range(first_split, last_split):
            maximum, mass = tl.full([ROWS_PAD], NEG_INF, tl.float32), tl.zeros([ROWS_PAD, BLOCK], tl.float32)
            end_key = tl.minimum((split + 1) * keys, most)
            for at in tl.range(split * keys, end_key, BLOCK, num_stages=STAGES):
                position = at + tl.arange(0, BLOCK)
                inside = position < end_key
                place, row = locate(TABLE, sequence, start + position, inside, table_b, blocks, PAGE)
                key = load_rows(KEY, KEY_SCALE, place, row, kv_head, element, inside, filled, key_b, key_h, key_n,
                                key_d, key_scale_h, key_scale_d, QUERY.dtype.element_ty, KEY_BY_CHANNEL)  # fmt: skip
                a = times_scales(scores_of(query, key, scale, PRECISION, WIDE), KEY_SCALE, place, row, kv_head, inside,
                                 key_scale_b, key_scale_h, key_scale_n, KEY_BY_CHANNEL)  # fmt: skip
                a = tl.where(position[None, :] < n[:, None], a, NEG_INF)
                tl.store(stored[:, None] + position[None, :], a, mask=real[:, None] & inside[None, :])
                maximum, finite, factor = rescale(maximum, tl.max(a, axis=1))
                mass = mass * factor[:, None] + tl.exp2((a - finite[:, None]) * LOG2E)
            of_split = (unit * SPLITS_PAD + split) * (HEADS * TOKENS) + r
            tl.store(MAXIMUM + of_split, maximum, mask=real)
            tl.store(MASS + of_split, tl.sum(mass, axis=1), mask=real)


@triton.jit
def _row_lse(MAXIMUM, MASS, first, splits, sink, r, real, ROWS: tl.constexpr, SPLITS_PAD: tl.constexpr):
    """Compute the LSE of whole rows [R], with the sink, from what `score` left of the splits."""
    s = tl.arange(0, SPLITS_PAD)
    of_split, there = first + s[:, None] * ROWS + r[None, :], (s < splits)[:, None] & real[None, :]
    maxima = tl.load(MAXIMUM + of_split, mask=there, other=NEG_INF)
    largest = tl.max(maxima, axis=0)
    finite = tl.where(largest == NEG_INF, 0.0, largest)
    masses = tl.load(MASS + of_split, mask=there, other=0.0)
    mass = tl.sum(masses * tl.exp2((maxima - finite[None, :]) * LOG2E), axis=0)
    return add_sink(largest + tl.log2(mass) * LN2, sink)


@triton.jit
def _score_threshold(threshold, lse):
    """Put a probability in score units: ln(threshold) + LSE, and -inf for 0 and less."""
    dense = threshold <= 0.0
    return tl.where(dense, NEG_INF, tl.log2(tl.where(dense, 1.0, threshold)) * LN2 + lse)


@triton.jit
def attend(QUERY, KEY, VALUE, KEY_SCALE, VALUE_SCALE, THRESHOLD, LENGTHS, STARTS, QUERY_LENGTHS, TABLE, SINK, LSE,
           STORED, STORED_MAXIMUM, STORED_MASS, LISTED, LISTED_SCORES, SUMS, MAXIMUM, KEPT_MASS, DISCARDED_MASS, KEPT,
           LARGEST_AT, VALUE_ROWS, scale, capacity, blocks, split_keys, length_b, length_t, table_b, threshold_b,
           threshold_h, threshold_t, query_b, query_h, query_t, query_d, key_b, key_h, key_n, key_d,
           value_b, value_h, value_n, value_d, key_scale_b, key_scale_h, key_scale_n, key_scale_d,
           value_scale_b, value_scale_h, value_scale_n, value_scale_d,
           KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
           D: tl.constexpr, HEAD_BLOCKS: tl.constexpr, TOKENS_PAD: tl.constexpr, ROWS_PAD: tl.constexpr,
           D_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr, BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr,
           STAGES: tl.constexpr, PAGE: tl.constexpr, OF_TOKENS: tl.constexpr, WIDE: tl.constexpr,
           PRECISION: tl.constexpr, VALUE_PRECISION: tl.constexpr, PLACEMENT: tl.constexpr,
           KEY_BY_CHANNEL: tl.constexpr, VALUE_BY_CHANNEL: tl.constexpr):  # fmt: skip
    """Test the scores of a split's keys, list those that some row of the block keeps, then read their V rows alone.

    A program does so for one split after the other. K alone streams through the first loop; the list is short.
    LARGEST_AT is the key of each row's largest score; where V rows are counted, twice that, and 1 more if another row
    keeps it.
    """
    kv_head, batch_block = tl.program_id(1), tl.program_id(2)
    sequence, block = batch_block // HEAD_BLOCKS, batch_block % HEAD_BLOCKS
    r, head, token, real = number_rows(block, HEADS, TOKENS, GROUP, TOKENS_PAD, ROWS_PAD)
    n, start, most = visible_keys(LENGTHS, STARTS, QUERY_LENGTHS, sequence, token, capacity, length_b, length_t,
                                  TOKENS, OF_TOKENS)  # fmt: skip
    n = tl.where(real, n, 0)
    splits, keys = split_row(most, BLOCK)
    first_split, last_split = own_splits(splits)
    unit = (sequence * KV_HEADS + kv_head) * HEAD_BLOCKS + block
    program = unit * tl.num_programs(0) + tl.program_id(0)
    value_rows = 0
    if first_split < last_split:
        head += kv_head * GROUP
        element = tl.arange(0, D_PAD)
        filled = element < D
        at_threshold = sequence * threshold_b + head * threshold_h + token * threshold_t
        theta = tl.load(THRESHOLD + at_threshold, mask=real, other=float("inf"))
        if PLACEMENT == POST:
            if STORED is None:
                lse = tl.load(LSE + (sequence * KV_HEADS * GROUP + head) * TOKENS + token, mask=real, other=0.0)
            else:
                sink = tl.full([ROWS_PAD], NEG_INF, tl.float32)
                if SINK is not None:
                    sink = tl.load(SINK + head, mask=real, other=NEG_INF)
                lse = _row_lse(STORED_MAXIMUM, STORED_MASS, unit * SPLITS_PAD * (HEADS * TOKENS), splits, sink, r, real,
                               HEADS * TOKENS, SPLITS_PAD)  # fmt: skip
            theta = tl.where(real, _score_threshold(theta, lse), float("inf"))
        if STORED is not None:
            stored = STORED + (unit.to(tl.int64) * (HEADS * TOKENS) + r) * capacity
        listed = LISTED + program.to(tl.int64) * split_keys
        listed_scores = LISTED_SCORES + (program.to(tl.int64) * (HEADS * TOKENS) + r) * split_keys
        for split in range(first_split, last_split):
            # stays apart by the key's place in its tile: sums across a program's threads are slow
            maximum = tl.full([ROWS_PAD], NEG_INF, tl.float32)
            discarded_mass = tl.zeros([ROWS_PAD, BLOCK], tl.float32)
            largest_at = tl.full([ROWS_PAD], NOWHERE, tl.int32)
            found = 0
            if STORED is None:  # here, to hold no registers while V is read
                query = load_query(QUERY, sequence, head, token, element, real, filled, query_b, query_h, query_t,
                                   query_d)  # fmt: skip
            end_key = tl.minimum((split + 1) * keys, most)
            for at in tl.range(split * keys, end_key, BLOCK, num_stages=STAGES):
                position = at + tl.arange(0, BLOCK)
                inside = position < end_key
                if STORED is None:
                    place, row = locate(TABLE, sequence, start + position, inside, table_b, blocks, PAGE)
                    key = load_rows(KEY, KEY_SCALE, place, row, kv_head, element, inside, filled, key_b, key_h, key_n,
                                    key_d, key_scale_h, key_scale_d, QUERY.dtype.element_ty,
                                    KEY_BY_CHANNEL)  # fmt: skip
                    a = times_scales(scores_of(query, key, scale, PRECISION, WIDE), KEY_SCALE, place, row, kv_head,
                                     inside, key_scale_b, key_scale_h, key_scale_n, KEY_BY_CHANNEL)  # fmt: skip
                    a = tl.where(position[None, :] < n[:, None], a, NEG_INF)
                else:
                    a = tl.load(
                        stored[:, None] + position[None, :], mask=real[:, None] & inside[None, :], other=NEG_INF
                    )
                keep = a > theta[:, None]
                needed = tl.max(keep.to(tl.int32), axis=0)
                new = tl.sum(needed, axis=0)
                if new > 0:
                    to = found + tl.cumsum(needed, axis=0) - needed
                    tl.store(listed + to, position, mask=needed > 0)
                    tl.store(listed_scores[:, None] + to[None, :], a, mask=real[:, None] & (needed > 0)[None, :])
                found += new
                largest = tl.max(a, axis=1)
                risen = largest > maximum
                if tl.max(risen.to(tl.int32), axis=0) > 0:  # seldom, after the first tiles
                    if VALUE_ROWS is not None:
                        position = position * 2 + needed
                    here = tl.min(tl.where(a == largest[:, None], position[None, :], NOWHERE), axis=1)
                    largest_at = tl.where(risen, here, largest_at)
                maximum, finite, factor = rescale(maximum, largest)
                exponential = tl.exp2((a - finite[:, None]) * LOG2E)
                discarded_mass = discarded_mass * factor[:, None] + tl.where(keep, 0.0, exponential)
            value_rows += found
            tl.debug_barrier()
            finite = tl.where(maximum == NEG_INF, 0.0, maximum)
            kept_mass = tl.zeros([ROWS_PAD], tl.float32)
            kept = tl.zeros([ROWS_PAD], tl.int32)
            sums = tl.zeros([ROWS_PAD, D_PAD], tl.float32)
            for at in tl.range(0, found, VALUE_BLOCK, num_stages=1):
                index = at + tl.arange(0, VALUE_BLOCK)
                inside = index < found
                position = tl.load(listed + index, mask=inside, other=0)
                place, row = locate(TABLE, sequence, start + position, inside, table_b, blocks, PAGE)
                value = load_rows(VALUE, VALUE_SCALE, place, row, kv_head, element, inside, filled, value_b, value_h,
                                  value_n, value_d, value_scale_h, value_scale_d, QUERY.dtype.element_ty,
                                  VALUE_BY_CHANNEL)  # fmt: skip
                a = tl.load(
                    listed_scores[:, None] + index[None, :], mask=real[:, None] & inside[None, :], other=NEG_INF
                )
                keep = a > theta[:, None]
                weight = tl.where(keep, tl.exp2((a - finite[:, None]) * LOG2E), 0.0)
                kept_mass += tl.sum(weight, axis=1)
                kept += tl.sum(keep.to(tl.int32), axis=1)
                weight = times_scales(weight, VALUE_SCALE, place, row, kv_head, inside, value_scale_b, value_scale_h,
                                      value_scale_n, VALUE_BY_CHANNEL)  # fmt: skip
                sums += sum_of_rows(weight, value, VALUE_PRECISION, WIDE,
                                    VALUE_SCALE is not None and not VALUE_BY_CHANNEL)  # fmt: skip
            of_split = (unit * SPLITS_PAD + split) * (HEADS * TOKENS) + r
            tl.store(SUMS + of_split.to(tl.int64)[:, None] * D_PAD + element[None, :], sums, mask=real[:, None])
            tl.store(MAXIMUM + of_split, maximum, mask=real)
            tl.store(KEPT_MASS + of_split, kept_mass, mask=real)
            tl.store(DISCARDED_MASS + of_split, tl.sum(discarded_mass, axis=1), mask=real)
            tl.store(KEPT + of_split, kept, mask=real)
            tl.store(LARGEST_AT + of_split, largest_at, mask=real)
            tl.debug_barrier()
    if VALUE_ROWS is not None:
        tl.store(VALUE_ROWS + program, value_rows)


@triton.jit
def join(SUMS, MAXIMUM, KEPT_MASS, DISCARDED_MASS, KEPT, LARGEST_AT, VALUE, VALUE_SCALE, THRESHOLD, LENGTHS, STARTS,
         QUERY_LENGTHS, TABLE, OFFLINE_MASS, VALUE_MEAN, SINK, OUT, OUT_LSE, OUT_KEPT, STOOD_IN, OUT_MAXIMUM,
         OUT_KEPT_MASS, OUT_DISCARDED_MASS, gamma, capacity, blocks, length_b, length_t, table_b, threshold_b,
         threshold_h, threshold_t, value_b, value_h, value_n, value_d, value_scale_b, value_scale_h, value_scale_n,
         value_scale_d, out_b, out_h, out_t, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
         TOKENS: tl.constexpr, D: tl.constexpr, HEAD_BLOCKS: tl.constexpr,
         TOKENS_PAD: tl.constexpr, ROWS_PAD: tl.constexpr, D_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr,
         BLOCK: tl.constexpr, PAGE: tl.constexpr, OF_TOKENS: tl.constexpr, WIDE: tl.constexpr,
         VALUE_BY_CHANNEL: tl.constexpr, SDC: tl.constexpr):  # fmt: skip
    """Add up a row's splits, let its largest element stand in where nothing passed, compensate and write.

    Of a part (OUT_MAXIMUM is there) the output is N / R, without compensation.
    """
    unit, r = tl.program_id(0), tl.program_id(1)
    block, kv_head = unit % HEAD_BLOCKS, unit // HEAD_BLOCKS % KV_HEADS
    sequence = unit // (HEAD_BLOCKS * KV_HEADS)
    in_group, token = block * HEADS + r // TOKENS, r % TOKENS
    if in_group < GROUP:
        head = kv_head * GROUP + in_group
        tokens = tl.arange(0, TOKENS_PAD)
        n, start, most = visible_keys(LENGTHS, STARTS, QUERY_LENGTHS, sequence, tokens, capacity, length_b, length_t,
                                      TOKENS, OF_TOKENS)  # fmt: skip
        n = tl.sum(tl.where(tokens == token, n, 0), axis=0)
        splits, _keys_of_split = split_row(most, BLOCK)
        s = tl.arange(0, SPLITS_PAD)
        of_split, there = (unit * SPLITS_PAD + s) * (HEADS * TOKENS) + r, s < splits
        maxima = tl.load(MAXIMUM + of_split, mask=there, other=NEG_INF)
        maximum = tl.max(maxima, axis=0)
        finite = tl.where(maximum == NEG_INF, 0.0, maximum)
        factor = tl.exp2((maxima - finite) * LOG2E)
        kept_mass = tl.sum(tl.load(KEPT_MASS + of_split, mask=there, other=0.0) * factor, axis=0)
        discarded_mass = tl.sum(tl.load(DISCARDED_MASS + of_split, mask=there, other=0.0) * factor, axis=0)
        passed = tl.sum(tl.load(KEPT + of_split, mask=there, other=0), axis=0)

        element = tl.arange(0, D_PAD)
        filled = element < D
        sums = tl.load(SUMS + of_split.to(tl.int64)[:, None] * D_PAD + element[None, :], mask=there[:, None], other=0.0)
        numerator = tl.sum(tl.where(there[:, None], sums * factor[:, None], 0.0), axis=0)

        lse = maximum + tl.log2(kept_mass + discarded_mass) * LN2
        stands_in = (passed == 0) & (maximum != NEG_INF) & (discarded_mass == discarded_mass)
        stood_in = -1
        if stands_in:
            best = tl.min(tl.where(there & (maxima == maximum), s, SPLITS_PAD), axis=0)
            at = tl.load(LARGEST_AT + (unit * SPLITS_PAD + best) * (HEADS * TOKENS) + r)
            if STOOD_IN is not None:
                stood_in = tl.where(at % 2 == 0, at // 2, -1)
                at = at // 2
            position = start + at + tl.zeros([1], tl.int32)
            yes = tl.full([1], 1, tl.int1)
            place, row = locate(TABLE, sequence, position, yes, table_b, blocks, PAGE)
            value = load_rows(VALUE, VALUE_SCALE, place, row, kv_head, element, yes, filled, value_b, value_h, value_n,
                              value_d, value_scale_h, value_scale_d, tl.float32, VALUE_BY_CHANNEL)  # fmt: skip
            weight = times_scales(tl.full([1, 1], 1.0, tl.float32), VALUE_SCALE, place, row, kv_head, yes,
                                  value_scale_b, value_scale_h, value_scale_n, VALUE_BY_CHANNEL)  # fmt: skip
            numerator = tl.sum(value.to(tl.float32) * weight, axis=0)
        at_row = (sequence * KV_HEADS * GROUP + head) * TOKENS + token
        at_out = OUT + sequence.to(tl.int64) * out_b + head * out_h + token * out_t + element
        if OUT_MAXIMUM is not None:
            out = numerator / tl.where(stands_in | (kept_mass == 0.0), 1.0, kept_mass)
            tl.store(OUT_MAXIMUM + at_row, maximum)
            tl.store(OUT_KEPT_MASS + at_row, kept_mass)
            tl.store(OUT_DISCARDED_MASS + at_row, discarded_mass)
            tl.store(OUT_KEPT + at_row, passed)
        else:
            kept = tl.where(stands_in, 1, passed)
            kept_mass = tl.where(stands_in, 1.0, kept_mass)
            exact = tl.where(stands_in, tl.maximum(discarded_mass - 1.0, 0.0), discarded_mass)
            if SDC == EXACT:
                estimate = exact
            elif SDC == EXP_THRESHOLD:
                theta = tl.load(THRESHOLD + sequence * threshold_b + head * threshold_h + token * threshold_t)
                estimate = gamma * (n - kept) * tl.exp2((tl.minimum(theta, maximum) - maximum) * LOG2E)
            elif SDC == OFFLINE:
                estimate = tl.load(OFFLINE_MASS + at_row)
            else:
                estimate = exact * 0.0
            estimate = tl.where((kept < n) & (maximum != NEG_INF), estimate, 0.0)
            denominator = kept_mass + estimate
            if SINK is not None:
                sink = tl.load(SINK + head)
                denominator += tl.where(maximum == NEG_INF, 0.0, tl.exp2((sink - maximum) * LOG2E))
                lse = add_sink(lse, sink)
            denominator = tl.where(denominator == 0.0, 1.0, denominator)
            out = numerator / denominator
            if VALUE_MEAN is not None:
                at_mean = ((sequence * KV_HEADS + kv_head) * TOKENS + token) * D + element
                mean = tl.load(VALUE_MEAN + at_mean, mask=filled, other=0.0)
                out += tl.where(estimate == 0.0, 0.0, estimate / denominator * mean)
            if OUT_LSE is not None:
                tl.store(OUT_LSE + at_row, tl.where(maximum == NEG_INF, maximum, lse))
                tl.store(OUT_KEPT + at_row, kept)
                tl.store(STOOD_IN + unit * (HEADS * TOKENS) + r, stood_in)
        out = tl.where(discarded_mass == discarded_mass, out, discarded_mass)
        tl.store(at_out, out.to(OUT.dtype.element_ty), mask=filled)


@triton.jit
def count_value_rows(VALUE_ROWS, STOOD_IN, OUT, GROUP: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
                     HEAD_BLOCKS: tl.constexpr, TOKENS_PAD: tl.constexpr, ROWS_PAD: tl.constexpr,
                     PROGRAMS: tl.constexpr, PROGRAMS_PAD: tl.constexpr):  # fmt: skip
    """Count the V rows of a KV head: those that passed in each program, and those that alone stood in for their row."""
    of_head = tl.program_id(0)
    count = 0
    p = tl.arange(0, PROGRAMS_PAD)
    for block in range(0, HEAD_BLOCKS):
        r, _head, _token, real = number_rows(block, HEADS, TOKENS, GROUP, TOKENS_PAD, ROWS_PAD)
        unit = of_head * HEAD_BLOCKS + block
        count += tl.sum(tl.load(VALUE_ROWS + unit * PROGRAMS + p, mask=p < PROGRAMS, other=0), axis=0)
        row = tl.load(STOOD_IN + unit * (HEADS * TOKENS) + r, mask=real, other=-1)
        again = row[:, None] == tl.load(STOOD_IN + unit * (HEADS * TOKENS) + r, mask=real, other=-1)[None, :]
        again = again & (r[None, :] < r[:, None])
        count += tl.sum(((row >= 0) & (tl.max(again.to(tl.int32), axis=1) == 0)).to(tl.int32), axis=0)
    tl.store(OUT + of_head, count)
