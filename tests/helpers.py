"""Inputs of a case, the oracle's answer to them, and the rule by which an output is judged."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from emulator.acl.environment import in_emulator
from tests.cases import Case
from toptheta_npu import merge_partials
from toptheta_npu.fallback import reference
from toptheta_npu.fallback.antiquant import (
    PER_CHANNEL,
    PER_TOKEN_AND_HEAD,
    PER_TOKEN_AND_HEAD_PAGED,
    per_channel,
    quantise,
)
from toptheta_npu.fallback.compensation import Compensation
from toptheta_npu.fallback.layout import count_value_rows
from toptheta_npu.fallback.sampled import sampled_lse

#: No score of a case lies nearer to its threshold than MARGIN[0] standard deviations plus MARGIN[1] of the
#: row's largest |score|, and where a row keeps only its largest element, that one leads by as much. float32
#: scores are 100 times more exact than this, so every implementation has to select the very same set.
MARGIN = (1e-3, 1e-5)
#: The standard deviations where a threshold lies beside a score, unless implementations round the query of an int8 K.
_BESIDE = 1e-4
#: What stands where int8 rows are not valid.
_INT8_FILLER = -128
INF = float("inf")


class Stored(NamedTuple):
    """An int8 K or V: its numbers [B, Hkv, S, D], and scales as the argument of a cache without pages takes them."""

    rows: Tensor
    scale: Tensor
    mode: int


@dataclass(frozen=True)
class Rows:
    """The case without layout or paging, on the CPU: q [B, Hq, D]; K, V [B, Hkv, S, D] in the case's dtype.

    Several tokens of a sequence are as many sequences here, one after the other, with the same K and V: B is that of
    the case times Sq, and lengths are those of rows. So each token is judged as the step of one.

    K and V of an int8 cache are what is ``stored`` of them, multiplied out in float64.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    threshold: Tensor  # [B, Hq] float32
    lengths: Tensor
    starts: Tensor
    discarded_mass: Tensor | None
    value_mean: Tensor | None
    learnable_sink: Tensor | None  # [Hq] float32
    stored: dict[str, Stored] = field(default_factory=dict)  # "key" and "value" of an int8 cache


@dataclass(frozen=True)
class Inputs:
    """``arguments`` for the public decode functions, the rows behind them, and what the oracle says of them."""

    case: Case
    arguments: dict[str, Any]
    rows: Rows
    expected: reference.ReferenceResult  # float64
    rounded_queries: Callable[[Case, Rows], list[Tensor]]  # what implementations make of a 16-bit query of an int8 K


def make_inputs(
    case: Case, device: str = "cpu", seed: int = 0, poison: Collection[str] = (), *, for_kernel: bool = False
) -> Inputs:
    """The case's tensors with a gap around every threshold (see `MARGIN`).

    Args:
        for_kernel: whether the NPU kernel is to be judged, as it is on an NPU: see `kernel_queries`.
        poison: "values" puts NaN and infinities into the V rows that no head of a group keeps, "outside"
            NaN into K and V outside the valid range and into unmapped pages. Neither may change a result.
    """
    of_kernel = for_kernel or device.startswith("npu")
    for attempt in range(50):
        generator = torch.Generator().manual_seed(1000 * seed + attempt)
        rows = _draw_rows(case, generator)
        expected = oracle(case, rows)
        rounded = kernel_queries(case, rows) if of_kernel and "key" in rows.stored else []
        if _has_gap(case, rows, expected.keep, rounded):
            break
    else:
        raise AssertionError(f"no inputs with a gap for {case.id}")
    key, value = (stored_rows(rows, name).clone() for name in ("key", "value"))
    if "values" in poison and value.is_floating_point():
        dropped = ~by_sequence(case, expected.keep.unflatten(1, (case.kv_heads, -1)).any(2)).any(1)  # [B, Hkv, S]
        dropped = dropped.repeat_interleave(case.query_tokens, 0)
        value[dropped] = torch.tensor([torch.nan, INF, -INF]).to(value)[torch.arange(int(dropped.sum())) % 3][:, None]
    valid = reference.valid_keys(key.shape[2], rows.lengths, rows.starts)[:, 0]
    valid = by_sequence(case, valid).any(1).repeat_interleave(case.query_tokens, 0)  # for any token
    outside = ~valid[:, None, :, None]
    filler = torch.nan if "outside" in poison else 30.0
    key, value = (filled(cache, outside, filler) for cache in (key, value))
    scales = {name: filled(stored.scale, outside[..., 0], filler) if stored.mode else stored.scale
              for name, stored in rows.stored.items()}  # fmt: skip
    arguments = _arguments(case, rows, key, value, scales, filler, generator, device)
    return Inputs(case, arguments, rows, expected, kernel_queries if of_kernel else whole_queries)


def stored_rows(rows: Rows, name: str) -> Tensor:
    """K or V [B, Hkv, S, D] as a cache holds it."""
    return rows.stored[name].rows if name in rows.stored else getattr(rows, name)  # type: ignore[no-any-return]


def filled(cache: Tensor, outside: Tensor, filler: float) -> Tensor:
    """The cache with ``filler`` where it is not valid; int8 has no NaN."""
    return cache.masked_fill(outside, filler if cache.is_floating_point() else _INT8_FILLER)


def _draw_rows(case: Case, generator: torch.Generator) -> Rows:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    batch, dim, tokens = len(case.lengths), case.head_dim, case.query_tokens
    lengths = torch.tensor(case.lengths)
    starts = torch.tensor(case.starts or (0,) * batch)
    slack = 0 if case.lengths_as == "none" else 5
    capacity = max(int((lengths + starts).max()), 1) + slack
    query, key = normal(batch * tokens, case.heads, dim), normal(batch, case.kv_heads, capacity, dim)
    if case.scores == "steep":
        query *= 60
    elif case.scores == "offset":
        query[..., 0], key[..., 0] = 30.0, 30.0 * dim**0.5
    if case.scale is not None:  # keep the scores about N(0, 1)
        query /= abs(case.scale) * dim**0.5
    dtype = case.torch_dtype
    query, key, value = query.to(dtype), key.to(dtype), normal(batch, case.kv_heads, capacity, dim).to(dtype)
    lengths, starts = _row_lengths(case, lengths), starts.repeat_interleave(tokens)
    key, value = (cache.repeat_interleave(tokens, 0) for cache in (key, value))
    stored = {name: _stored(case, name, cache) for name, cache in (("key", key), ("value", value))
              if case.scales_of(name)}  # fmt: skip
    key, value = (multiplied_out(stored[name]) if name in stored else cache
                  for name, cache in (("key", key), ("value", value)))  # fmt: skip
    valid = reference.valid_keys(capacity, lengths, starts)
    scores = _scores(case, query, key).masked_fill(~valid, -INF)
    mass = value_mean = sink = None
    if case.sdc == "offline":
        mass = torch.rand((len(query), case.heads), generator=generator) + 0.1
    if case.vmc:
        kept = value.double().masked_fill(~valid[..., None], 0.0)
        value_mean = (kept.sum(2) / lengths.clamp_min(1)[:, None, None]).float()
    if case.sink:
        sink = _sink(scores, normal(case.heads))
    return Rows(
        query,
        key,
        value,
        _threshold(case, scores, lengths, starts, sink),
        lengths,
        starts,
        mass,
        value_mean,
        sink,
        stored,
    )


def _row_lengths(case: Case, lengths: Tensor) -> Tensor:
    """The length of each row: of s real tokens and n keys, token t sees n - s + 1 + t."""
    found = []
    for n, real in zip(lengths.tolist(), case.query_lengths or (case.query_tokens,) * len(lengths), strict=True):
        first = n - real + 1
        found += [first + token if token < real and n else 0 for token in range(case.query_tokens)]
    return torch.tensor(found)


def by_sequence(case: Case, of_rows: Tensor) -> Tensor:
    """What there is of each row as [B, Sq, ...]."""
    return of_rows.unflatten(0, (-1, case.query_tokens))


def of_tokens(case: Case, of_rows: Tensor) -> Tensor:
    """[B * Sq, H, ...] of rows as operators take and return it: [B, H, Sq, ...], without Sq where it is 1."""
    return of_rows if case.query_tokens == 1 else by_sequence(case, of_rows).transpose(1, 2).contiguous()


def of_rows(case: Case, tokens: Tensor) -> Tensor:
    """[B, H, Sq], or [B, H] of one token, as [B * Sq, H] of rows."""
    return tokens if case.query_tokens == 1 else tokens.transpose(1, 2).flatten(0, 1)


def _stored(case: Case, cache: str, rows: Tensor) -> Stored:
    """An int8 K or V of these rows, which has a row of zeros with a scale of 0, and -128 among its numbers."""
    largest, scales = rows.double().abs(), case.scales_of(cache)
    scale = {
        "channel": lambda: largest.amax((0, 2)), "tensor": lambda: largest.amax()[None],
        "token": lambda: largest.amax(-1),
    }[scales]() / 127  # fmt: skip
    scale = scale.to(getattr(torch, case.scales_as))
    by_row = scales == "token"
    if by_row:
        scale[:, :, 1::7] = 0.0
    beside = scale[..., None] if by_row else scale[None, :, None] if scale.dim() == 2 else scale
    numbers = quantise(rows, beside)
    numbers[..., -1] = torch.where(numbers[..., -1] < -100, -128, numbers[..., -1])
    return Stored(numbers, scale, PER_TOKEN_AND_HEAD if by_row else PER_CHANNEL)


def multiplied_out(stored: Stored) -> Tensor:
    """What int8 rows stand for, float64."""
    scale = stored.scale.double()
    beside = scale[..., None] if stored.mode else scale[None, :, None] if scale.dim() == 2 else scale
    return stored.rows.double() * beside


def _sink(scores: Tensor, spread: Tensor) -> Tensor:
    """[Hq] float32: what `Case.sink` says, around the LSE of the longest row; other turns than those of ``mixed``."""
    heads = torch.arange(scores.shape[1])
    turns = torch.tensor([0.0, -2.0, 120.0, -INF])[(heads + heads // 4) % 4]
    return (scores.logsumexp(-1).amax(0).clamp_min(-1.0) + turns + 0.3 * spread).float()


def _scores(case: Case, query: Tensor, key: Tensor) -> Tensor:
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    return reference.attention_scores(query.double(), key.double(), scale)


def _threshold(case: Case, scores: Tensor, lengths: Tensor, starts: Tensor, sink: Tensor | None) -> Tensor:
    """[B, Hq] float32 in the units of the case's placement, for scores that are -inf outside the valid range.

    No probability is subnormal: the kernel takes those as 0."""
    threshold = torch.empty(scores.shape[:2], dtype=torch.float64)
    for head in range(case.heads):
        kind = case.theta if case.theta != "mixed" else ("dense", "quantile", "nothing", "inf")[head % 4]
        for sequence in range(len(scores)):
            row = scores[:, head].flatten() if case.shared_theta else scores[sequence, head]
            row = row[row > -INF]
            side = 0.0
            if kind == "beside" and len(row) > 1:
                # above a score for one head or row, below one for the next, half a margin farther than has to be
                side = 1.5 * margin(case, row) * (-1) ** (head if case.shared_theta else head + sequence)
            threshold[sequence, head] = threshold_in_gap(row.sort(descending=True).values, kind, case.keep, side)
    if case.placement != "pre_softmax":
        threshold = probability(threshold, _lse(case, scores, lengths, starts, sink).clamp_min(-1e9))
        zeros = torch.tensor([0.0, -INF, -0.5]).repeat(case.heads)[: case.heads].expand_as(threshold)
        threshold = torch.where(threshold < torch.finfo(torch.float32).tiny, zeros, threshold)
    return threshold.float()


def _lse(case: Case, scores: Tensor, lengths: Tensor, starts: Tensor, sink: Tensor | None) -> Tensor:
    """[B, Hq], what a probability is a share of."""
    if case.placement == "sampled_softmax":
        return sampled_lse(scores, lengths, starts, sink)
    return reference.log_sum_exp(scores, sink)


def lse_of_rows(inputs: Inputs) -> Tensor:
    """[B, Hq] float32, what the probabilities of the case are a share of."""
    case, rows = inputs.case, inputs.rows
    valid = reference.valid_keys(rows.key.shape[2], rows.lengths, rows.starts)
    scores = _scores(case, rows.query, rows.key).masked_fill(~valid, -INF)
    return _lse(case, scores, rows.lengths, rows.starts, rows.learnable_sink).float()


def probability(threshold: Tensor, lse: Tensor) -> Tensor:
    """A threshold in score units as one of the softmax; above 1, where nothing passes, +inf."""
    theta = (threshold - lse).exp()
    return theta.masked_fill(theta > 1, INF)


def threshold_in_gap(descending: Tensor, kind: str, keep: float, beside: float = 0.0) -> float:
    """A threshold in score units for a row sorted in descending order, in the widest gap near its quantile.

    It lies in the middle, or so far above the score below (``beside`` > 0) or below the one above (< 0).
    """
    n = len(descending)
    if n == 0 or kind in ("dense", "inf"):
        return INF if kind == "inf" else -INF
    if kind == "nothing":
        return float(descending[0] + 0.05 * descending[0].abs() + 0.1)
    if n == 1:
        return float(descending[0] - 1)
    rank = min(max(round(keep * n), 1), n - 1)
    low, high = max(1, rank - max(2, rank // 4)), min(n - 1, rank + max(2, rank // 4))
    gaps = descending[low - 1 : high] - descending[low : high + 1]
    best = low + int(gaps.argmax())
    if beside:
        return float(descending[best if beside > 0 else best - 1]) + beside
    return float(descending[best - 1 : best + 1].mean())


def margin(case: Case, row: Tensor) -> float:
    """How far the threshold is from every score of a row."""
    rounded = case.scales_of("key") and case.torch_dtype.itemsize == 2
    deviations = _BESIDE if case.theta == "beside" and not rounded else MARGIN[0]
    spread = float(row.std()) if len(row) > 1 else 1.0
    return deviations * spread + MARGIN[1] * float(row.abs().max())


def _has_gap(case: Case, rows: Rows, keep: Tensor, rounded: Sequence[Tensor] = ()) -> bool:
    """Whether no score lies near its threshold, and none is moved past it by a rounded query."""
    moved = [_distances(case, rows, query) for query in rounded]
    for (sequence, head), (row, distance) in _distances(case, rows, rows.query).items():
        apart = margin(case, row)
        ordered = row.sort(descending=True)
        lonely = len(row) > 1 and int(keep[sequence, head].sum()) == 1
        if distance.abs().min() < apart or (lonely and ordered.values[0] - ordered.values[1] < apart):
            return False
        for other in moved:
            other_row, other_distance = other[sequence, head]
            if (other_distance * distance.sign()).min() < MARGIN[1] * row.abs().max():
                return False
            if lonely and other_row.argmax() != row.argmax():
                return False
    return True


def _distances(case: Case, rows: Rows, query: Tensor) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
    """By sequence with keys, and head: the scores of the valid keys, and what they are above the threshold."""
    scores, found = _scores(case, query, rows.key), {}
    for sequence, (start, n) in enumerate(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True)):
        for head in range(case.heads if n else 0):
            row = scores[sequence, head, start : start + n]
            theta = rows.threshold[sequence, head].double()
            if case.placement != "pre_softmax":
                sink = None if rows.learnable_sink is None else rows.learnable_sink[head, None]
                lse = _lse(case, row[None, None], rows.lengths[sequence, None], torch.zeros(1, dtype=torch.int64), sink)
                theta = theta.clamp_min(0).log() + lse[0, 0]
            found[sequence, head] = row, row - theta
    return found


def oracle(case: Case, rows: Rows) -> reference.ReferenceResult:
    """The float64 oracle on the rows of a case."""
    doubles = (each.double() for each in (rows.query, rows.key, rows.value, rows.threshold))
    return reference.incremental_attention(
        reference.Rows(*doubles, rows.lengths, rows.starts, case.scale),
        Compensation(case.sdc, 0.05, rows.discarded_mass, rows.value_mean, rows.learnable_sink),
        placement=case.placement,
    )


def in_layout(rows: Tensor, layout: str) -> Tensor:
    """[B, H, S, D] in the order of a layout, contiguous."""
    if layout == "BNSD":
        return rows.contiguous()
    swapped = rows.transpose(1, 2).contiguous()
    return swapped if layout == "BSND" else swapped.flatten(2)


def from_layout(out: Tensor, layout: str, heads: int) -> Tensor:
    """The output as [B * Sq, H, D], a row after the other."""
    if layout == "BNSD":
        return out.transpose(1, 2).flatten(0, 1)
    return out.flatten(0, 1) if layout == "BSND" else out.flatten(0, 1).unflatten(1, (heads, -1))


def _arguments(
    case: Case, rows: Rows, key: Tensor, value: Tensor, scales: dict[str, Tensor], filler: float,
    generator: torch.Generator, device: str,
) -> dict[str, Any]:  # fmt: skip
    tokens = case.query_tokens
    arguments: dict[str, Any] = {"query": in_layout(by_sequence(case, rows.query).transpose(1, 2), case.layout)}
    key, value = key[::tokens], value[::tokens]
    lengths, starts = torch.tensor(case.lengths), rows.starts[::tokens]
    scales = {name: scale[::tokens] if rows.stored[name].mode else scale for name, scale in scales.items()}
    for name, scale in scales.items():
        arguments |= {f"{name}_antiquant_scale": scale, f"{name}_antiquant_mode": rows.stored[name].mode}
    if case.paged:
        by_row = {name: scale for name, scale in scales.items() if rows.stored[name].mode}
        arguments |= page(key, value, lengths, case.block_size, case.paged, case.blocks, filler, generator, by_row)
    else:
        arguments |= {"key": in_layout(key, case.layout), "value": in_layout(value, case.layout)}
    arguments["threshold"] = rows.threshold[0].clone() if case.shared_theta else of_tokens(case, rows.threshold)
    if case.lengths_as != "none":
        arguments["actual_seq_lengths"] = (
            list(case.lengths) if case.lengths_as == "list" else lengths.to(getattr(torch, case.lengths_as))
        )
    if case.query_lengths:
        arguments["actual_query_lengths"] = torch.tensor(case.query_lengths)
        if case.lengths_as == "list":
            arguments["actual_query_lengths"] = list(case.query_lengths)
    if case.starts:
        arguments["key_start"] = starts.int()
    if case.layout == "BSH" or case.paged == "3d":
        arguments |= {"num_heads": case.heads, "num_key_value_heads": case.kv_heads}
    optional = {
        "discarded_mass": None if rows.discarded_mass is None else of_tokens(case, rows.discarded_mass),
        "value_mean": None if rows.value_mean is None else of_tokens(case, rows.value_mean),
        "learnable_sink": rows.learnable_sink,
        "scale_value": case.scale,
    }
    arguments |= {name: given for name, given in optional.items() if given is not None}
    arguments |= {"input_layout": case.layout, "placement": case.placement, "sdc": case.sdc}
    return {name: given.to(device) if isinstance(given, Tensor) else given for name, given in arguments.items()}


def page(
    key: Tensor, value: Tensor, lengths: Tensor, block_size: int, form: str, order: str, filler: float,
    generator: torch.Generator, scales: dict[str, Tensor] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """K and V [B, Hkv, S, D] cut into a pool of blocks; table entries past the end are -1 and huge.

    ``scales`` [B, Hkv, S] of "key" and "value" are cut likewise.
    """
    batch, kv_heads, *_ = key.shape
    caches = [key, value, *(scale[..., None] for scale in (scales or {}).values())]
    used = [-(-n // block_size) for n in lengths.tolist()]
    count = sum(used) + 3
    ids = torch.randperm(count, generator=generator)
    if order == "descending":
        ids = torch.arange(count - 1, -1, -1)
    table = torch.tensor([-1, 2**31 - 1], dtype=torch.int32).repeat(batch, max(used) + 2)[:, : max(used) + 3].clone()
    pools = [filled(cache.new_zeros((count, kv_heads, block_size, cache.shape[-1])), torch.tensor(True), filler)
             for cache in caches]  # fmt: skip
    free = iter(ids.tolist())
    for sequence in range(batch):
        for index in range(used[sequence]):
            block = table[sequence, index] = next(free)
            for pool, cache in zip(pools, caches, strict=True):
                rows = cache[sequence, :, index * block_size : (index + 1) * block_size]
                pool[block, :, : rows.shape[1]] = rows
    by_row: dict[str, Any] = {}
    for name, pool in zip(scales or {}, pools[2:], strict=True):
        by_row |= {f"{name}_antiquant_scale": pool[..., 0], f"{name}_antiquant_mode": PER_TOKEN_AND_HEAD_PAGED}
    if form == "3d":
        pools = [pool.transpose(1, 2).flatten(2).contiguous() for pool in pools]
    return {"key": pools[0], "value": pools[1], "block_table": table, "block_size": block_size} | by_row


def yardstick(inputs: Inputs, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """(out, lse): the same maths as dense masked PyTorch in the input dtype, on the oracle's index set.

    A 16-bit query of an int8 K may be rounded: see `whole_queries` and `kernel_queries`. Then each number is the one
    farthest from the oracle's that a rounding makes, in this dtype or in float64: over a few rows, one dtype alone may
    be right by luck.
    """
    case, rows, expected = inputs.case, inputs.rows, inputs.expected
    dtype = dtype or case.torch_dtype
    if case.torch_dtype.itemsize != 2 or "key" not in rows.stored:
        return _masked_attention(inputs, rows.query, dtype)
    results = [_masked_attention(inputs, query, each)
               for query in inputs.rounded_queries(case, rows) for each in (dtype, torch.float64)]  # fmt: skip
    out, lse = zip(*results, strict=True)
    return _farthest(out, expected.out), _farthest(lse, expected.lse)


def _farthest(candidates: Sequence[Tensor], expected: Tensor) -> Tensor:
    numbers = torch.stack([each.double() for each in candidates])
    return numbers.gather(0, (numbers - expected).abs().nan_to_num().argmax(0, keepdim=True))[0]


def _masked_attention(inputs: Inputs, query: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(out, lse) on the oracle's index set, in a dtype."""
    case, rows, keep = inputs.case, inputs.rows, inputs.expected.keep
    group = case.heads // case.kv_heads
    key, value = (t.to(dtype).repeat_interleave(group, dim=1) for t in (rows.key, rows.value))
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    valid = reference.valid_keys(key.shape[2], rows.lengths, rows.starts)
    scores = (torch.einsum("bhd,bhsd->bhs", query.to(dtype), key) * scale).masked_fill(~valid, -INF)
    maximum = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(dtype).min)
    weights = (scores - maximum).exp()
    kept_mass = (weights * keep).sum(-1)
    estimate = (weights * ~keep).sum(-1)
    count = (rows.lengths[:, None] - inputs.expected.kept).to(dtype)
    if case.sdc == "none":
        estimate = torch.zeros_like(estimate)
    elif case.sdc == "exp_threshold":
        capped = torch.minimum(rows.threshold.to(dtype), maximum[..., 0])
        estimate = 0.05 * count * (capped - maximum[..., 0]).exp()
    elif rows.discarded_mass is not None:
        estimate = rows.discarded_mass.to(dtype)
    estimate = torch.where(count == 0, torch.zeros_like(estimate), estimate)
    sink = torch.full((case.heads,), -INF) if rows.learnable_sink is None else rows.learnable_sink
    sink_mass = (sink.to(dtype) - maximum[..., 0]).exp()
    denominator = (kept_mass + estimate + sink_mass)[..., None].masked_fill((rows.lengths == 0)[:, None, None], 1.0)
    out = torch.einsum("bhs,bhsd->bhd", weights * keep / denominator, value.masked_fill(~valid[..., None], 0.0))
    if rows.value_mean is not None:
        out += estimate[..., None] / denominator * rows.value_mean.to(dtype).repeat_interleave(group, dim=1)
    return out, torch.logaddexp(scores.logsumexp(-1), sink.to(dtype))


def whole_queries(case: Case, rows: Rows) -> list[Tensor]:
    """The query, float64, as the native CPU kernel rounds it: with the scales of K's channels in it, whole numbers of
    16 bits with one unit per head."""
    stored, query = rows.stored["key"], rows.query.double()
    if stored.mode:
        largest = query.abs().amax(-1, keepdim=True)
        unit = torch.exp2(torch.frexp(largest).exponent - 15.0)
        return [(query / unit).round() * unit]
    scale = _scale_of_heads(case, stored)
    scaled = query * scale
    unit = scaled.abs().amax(-1, keepdim=True) / 32767
    return [(scaled / unit).round().nan_to_num() * unit / scale.where(scale != 0, INF)]


def kernel_queries(case: Case, rows: Rows) -> list[Tensor]:
    """The query, float64, as the cores of an NPU round it: single heads with one token are for the vector cores."""
    cube = case.heads > case.kv_heads or case.query_tokens > 1 or bool(case.query_lengths)
    return [half_query(case, rows)] + [query_of_parts(case, rows)] * cube


def query_of_parts(case: Case, rows: Rows) -> Tensor:
    """The query, float64, of a cube core: with the scales of K's channels in it, two int8 parts of a whole number."""
    stored, query = rows.stored["key"], rows.query.double()
    scale = torch.ones_like(query[0]) if stored.mode else _scale_of_heads(case, stored)
    unit = (query * scale).abs().amax(-1, keepdim=True) / (127 * 256)
    return (query * scale / unit).round().nan_to_num() * unit / scale.where(scale != 0, INF)


def half_query(case: Case, rows: Rows) -> Tensor:
    """The query, float64, of a vector core: with the scales of K's channels in it, a power of two taken out of each
    head, in float16; the first 16 columns stay in float32."""
    stored, query = rows.stored["key"], rows.query.double()
    scale = torch.ones_like(query[0]) if stored.mode else _scale_of_heads(case, stored)
    scaled = query * scale
    power = torch.exp2(torch.frexp(scaled.abs().amax(-1, keepdim=True)).exponent - 1.0)
    rounded = (scaled / power).half().double() * power
    rounded[..., :16] = scaled[..., :16].float().double()
    return rounded / scale.where(scale != 0, INF)


def _scale_of_heads(case: Case, stored: Stored) -> Tensor:
    """Scales of the channels [Hq, D], float64."""
    scale = per_channel(stored.scale, case.kv_heads, case.head_dim).double()
    return scale.repeat_interleave(case.heads // case.kv_heads, 0)


def assert_within_yardstick(out: Tensor, yard: Tensor, expected: Tensor, largest_score: float = 0.0) -> None:
    """The error against the oracle is at most twice the yardstick's plus 1e-5.

    ``largest_score`` adds what four units in the last place of such a score change in an exponential: over a few
    rows the yardstick may be exact by luck.
    """
    finite = expected.isfinite()
    assert torch.equal(out.cpu()[~finite].double(), expected[~finite])
    error = (out.cpu().double() - expected)[finite].abs()
    allowed = 2 * float((yard.double() - expected)[finite].abs().max() if finite.any() else 0.0) + 1e-5
    allowed += 4 * torch.finfo(torch.float32).eps * largest_score
    assert not error.isnan().any(), "NaN in the output"
    assert float(error.max() if len(error) else 0.0) <= allowed, f"error {float(error.max()):.3e} > {allowed:.3e}"


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """For two roads to the same row with |V| about 1: float32 sums in another order, or probabilities and
    outputs rounded to a 16-bit dtype, which is off by half an eps of |V| and of the output each."""
    eps = torch.finfo(dtype).eps
    return {"rtol": 2 * eps, "atol": 1e-5 if dtype == torch.float32 else eps}


def assert_equals_oracle(
    inputs: Inputs, result: tuple[Tensor, ...], largest_score: float = 0.0, value_rows_read: Tensor | None = None
) -> None:
    """The whole result of `incremental_attention_with_stats`: dtypes and shape, counts exactly, numbers within the
    yardstick (see `assert_within_yardstick`). ``value_rows_read``: where it is not `needed_value_rows`."""
    out, lse, kept, value_rows = result
    case, expected = inputs.case, inputs.expected
    wanted = of_tokens(case, expected.kept).shape
    assert (lse.shape, kept.shape) == (wanted, wanted)
    lse, kept = of_rows(case, lse), of_rows(case, kept)
    assert out.dtype == case.torch_dtype
    assert (lse.dtype, kept.dtype, value_rows.dtype) == (torch.float32, torch.int32, torch.int32)
    assert out.shape == inputs.arguments["query"].shape
    assert torch.equal(kept.long().cpu(), expected.kept)
    needed = needed_value_rows(case, expected) if value_rows_read is None else value_rows_read
    assert torch.equal(value_rows.long().cpu(), needed)
    assert_within_yardstick(lse, yardstick(inputs, torch.float32)[1], expected.lse, largest_score)
    out = from_layout(out, case.layout, case.heads)
    assert_within_yardstick(out, yardstick(inputs)[0], expected.out, largest_score)


def needed_value_rows(case: Case, expected: reference.ReferenceResult) -> Tensor:
    """[B, Hkv]: the V rows that any token of a sequence keeps."""
    return count_value_rows(by_sequence(case, expected.keep).any(1), case.kv_heads, case.head_dim)


def whole_row_tensors(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors that parts of rows do not take, and their merge does."""
    return {name: inputs.arguments[name] for name in Compensation().tensors if name in inputs.arguments}


def assert_parts_merge(
    inputs: Inputs, parts: Sequence[tuple[Tensor, ...]], lengths: Sequence[Tensor], largest_score: float = 0.0
) -> None:
    """Parts of the rows, with so many valid keys each, merge to the oracle's rows."""
    case = inputs.case
    merged = merge_partials(
        parts, inputs.arguments["threshold"], lengths, placement=case.placement, sdc=case.sdc,
        input_layout=case.layout, **whole_row_tensors(inputs),
    )  # fmt: skip
    out = from_layout(merged, case.layout, case.heads)
    assert_within_yardstick(out, yardstick(inputs)[0], inputs.expected.out, largest_score)


@functools.cache
def has_npu() -> bool:
    """Whether torch_npu has devices: emulated ones, or real ones, which show as a device file.

    Where REQUIRE_NPU=1 says that there have to be some, none is an error: tests that are all skipped show nothing.
    """
    found = _find_npu()
    if not found and os.environ.get("REQUIRE_NPU") == "1":
        raise pytest.UsageError("REQUIRE_NPU=1: expected devices of torch_npu, got none; see: toptheta doctor")
    return found


def _find_npu() -> bool:
    real = importlib.util.find_spec("torch_npu") and Path("/dev/davinci_manager").exists()
    if not real and not in_emulator():
        return False
    import torch_npu  # noqa: F401 (registers torch.npu)

    return bool(torch.npu.is_available())
