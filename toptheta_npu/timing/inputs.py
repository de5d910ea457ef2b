"""The data of one shape: caches that rotate through memory, thresholds that keep exactly k, and the right answers.

What has a number for each query row has no axis Sq where a step has one token, as in the operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import TopThetaValueError
from ..fallback.layout import any_true, count_value_rows, drop_token_axis, row_lengths
from .shapes import Shape

#: A power of two, so that what int8 rows stand for is the same in every dtype: answers and thresholds are, too.
INT8_SCALE = 2.0**-5


@dataclass(frozen=True)
class Inputs:
    """Everything that a contender may use.

    Attributes:
        query: [B, Hq, Sq, D].
        layers: (K, V) pairs at different addresses, equal in content; [B, Hkv, n, D] or
            [blocks, Hkv, block_size, D]. Cold calls rotate through them, hot calls use the first.
        int8_layers: the same numbers in int8, each of which stands for itself times `INT8_SCALE`; empty without int8.
        threshold: float32 [B, Hq] or [B, Hq, Sq], between the k-th and the next score of each row.
        value_mean: float32 [B, Hkv, D] or [B, Hkv, Sq, D], of the V rows that a token sees.
        block_table, lengths: int32 [B, blocks] shuffled and int64 [B] if paged, else None.
        answers: by name ("dense", "kept", "compensated") the output in float32 [B, Hq, Sq, D].
        kept: elements kept per row, [B, Hq] or [B, Hq, Sq].
        value_rows: V rows needed by any head and token, [B, Hkv], as the operator counts them on a CPU.
    """

    shape: Shape
    query: Tensor
    layers: list[tuple[Tensor, Tensor]]
    int8_layers: list[tuple[Tensor, Tensor]]
    threshold: Tensor
    value_mean: Tensor
    block_table: Tensor | None
    lengths: Tensor | None
    answers: Mapping[str, Tensor]
    kept: Tensor
    value_rows: Tensor

    @property
    def traffic(self) -> Traffic:
        return make_traffic(self.shape, int(self.value_rows.sum()))


class Traffic(NamedTuple):
    """Bytes that one call must read, and what follows from them.

    Attributes:
        key_bytes: of all K rows.
        value_bytes: of the V rows needed.
        density: share of the V rows that are needed, written rho.
        bound: 2 / (1 + rho), the most that reading fewer V rows can gain over an equally good dense kernel.
    """

    key_bytes: int
    value_bytes: int
    density: float
    bound: float


def make_traffic(shape: Shape, value_rows: int) -> Traffic:
    """Compute bytes and bound for a number of V rows, summed over sequences and KV heads.

    Example:
        >>> make_traffic(Shape(1, 48, 48, n=2048, k=128), 48 * 128).bound
        1.8823529411764706
    """
    value_bytes = value_rows * shape.row_bytes
    density = value_bytes / shape.key_bytes
    return Traffic(shape.key_bytes, value_bytes, density, 2 / (1 + density))


def count_copies(shape: Shape, cache_bytes: int, cold: bool) -> int:
    """Count the layers to rotate through: together at least twice the cache, at least 2. Hot calls need one.

    Example:
        >>> count_copies(Shape(1, 48, 48, n=2048, k=128), 192 << 20, cold=True)
        8
    """
    return max(2, -(-2 * cache_bytes // (shape.int8_layer_bytes or shape.layer_bytes))) if cold else 1


def bytes_needed(shape: Shape, copies: int) -> int:
    """Estimate the bytes that `make_inputs` and the contenders allocate at most."""
    scores = 4 * shape.batch * shape.num_heads * shape.query_tokens * shape.n
    sequence_in_float32 = 4 * shape.num_key_value_heads * shape.n * shape.head_dim
    gathered = 4 * shape.batch * shape.num_heads * shape.query_tokens * shape.k * shape.head_dim
    # one more layer: the contiguous cache that a paged one is made from, or a copy of K
    return (
        (copies + 1) * (shape.layer_bytes + shape.int8_layer_bytes)
        + 4 * scores
        + 2 * sequence_in_float32
        + 2 * gathered
    )


def check_memory(shape: Shape, copies: int, free: float) -> None:
    """Refuse a shape that does not fit, before anything is allocated.

    Raises:
        TopThetaValueError: naming the bytes needed and those free.
    """
    needed = bytes_needed(shape, copies)
    if needed > free:
        raise TopThetaValueError(
            "shape", f"at most the {free / 2**30:.1f} GiB that are free on the device",
            f"{needed / 2**30:.1f} GiB for {shape} ({copies} copies of its cache)",
            "take a smaller n or batch, or --cache hot, which needs one copy",
        )  # fmt: skip


def make_inputs(shape: Shape, device: str, copies: int, seed: int = 0) -> Inputs:
    """Draw normal K, V and query, set the thresholds, and lay the caches out.

    Example:
        >>> inputs = make_inputs(Shape(1, 4, 2, n=64, k=8, dtype="float32"), "cpu", copies=2)
        >>> inputs.kept.tolist()
        [[8, 8, 8, 8]]
    """
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(shape.torch_dtype)

    def rows(*size: int) -> Tensor:
        drawn = normal(*size)
        return _as_int8(drawn).to(drawn.dtype) * INT8_SCALE if shape.cache else drawn

    query = normal(shape.batch, shape.num_heads, shape.query_tokens, shape.head_dim)
    cache_size = (shape.num_key_value_heads, shape.n, shape.head_dim)
    # one sequence at a time: float32 draws of a whole batch would need twice the cache's memory
    key, value = (torch.stack([rows(*cache_size) for _ in range(shape.batch)]) for _ in range(2))
    answers = _Answers.empty(shape, device)
    for sequence in range(shape.batch):
        for head in range(shape.num_key_value_heads):
            answers.fill(sequence, head, query, key[sequence, head].float(), value[sequence, head].float())
    block_table = lengths = None
    if shape.block_size:
        block_table = _shuffled_blocks(shape, seed).to(device)
        lengths = torch.full((shape.batch,), shape.n, dtype=torch.int64, device=device)
        key, value = (_paged(cache, block_table, shape) for cache in (key, value))
    layers = [(key, value), *((key.clone(), value.clone()) for _ in range(copies - 1))]
    int8_layers = [(_as_int8(key), _as_int8(value)) for key, value in layers] if shape.cache else []
    outputs = {"dense": answers.dense, "kept": answers.sparse, "compensated": answers.compensated}
    return Inputs(
        shape, query, layers, int8_layers, drop_token_axis(answers.threshold), drop_token_axis(answers.value_mean),
        block_table, lengths, outputs, drop_token_axis(answers.kept), answers.value_rows,
    )  # fmt: skip


def _as_int8(rows: Tensor) -> Tensor:
    return (rows / INT8_SCALE).round_().clamp_(-127, 127).to(torch.int8)


@dataclass(frozen=True)
class _Answers:
    """Answers, filled in for one KV head after the other. Only n scores per query head of a group exist at once."""

    shape: Shape
    threshold: Tensor
    value_mean: Tensor
    dense: Tensor
    sparse: Tensor
    compensated: Tensor
    kept: Tensor
    value_rows: Tensor

    @classmethod
    def empty(cls, shape: Shape, device: str) -> _Answers:
        batch, heads, kv_heads, dim = shape.batch, shape.num_heads, shape.num_key_value_heads, shape.head_dim
        tokens = shape.query_tokens
        dense, sparse, compensated = (
            torch.empty((batch, heads, tokens, dim), dtype=torch.float32, device=device) for _ in range(3)
        )
        kept = torch.empty((batch, heads, tokens), dtype=torch.int32, device=device)
        value_rows = torch.empty((batch, kv_heads), dtype=torch.int32, device=device)
        threshold = torch.empty((batch, heads, tokens), dtype=torch.float32, device=device)
        value_mean = torch.empty((batch, kv_heads, tokens, dim), dtype=torch.float32, device=device)
        return cls(shape, threshold, value_mean, dense, sparse, compensated, kept, value_rows)

    def fill(self, sequence: int, head: int, query: Tensor, key: Tensor, value: Tensor) -> None:
        group = slice(head * self.shape.group, (head + 1) * self.shape.group)
        scores = query[sequence, group].float() / math.sqrt(self.shape.head_dim) @ key.transpose(0, 1)
        scores = scores.masked_fill_(hidden_keys(self.shape, scores.device), -math.inf)
        theta = threshold_after(scores, self.shape.k)
        keep = scores > theta[..., None]
        mean = torch.stack([value[:seen].mean(0) for seen in seen_keys(self.shape)])
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        total, mass = weights.sum(-1, keepdim=True), (weights * keep).sum(-1, keepdim=True)
        numerator = (weights * keep) @ value
        self.threshold[sequence, group] = theta
        self.value_mean[sequence, head] = mean
        self.dense[sequence, group] = weights @ value / total
        self.sparse[sequence, group] = numerator / mass
        self.compensated[sequence, group] = (numerator + (total - mass) * mean) / total
        self.kept[sequence, group] = keep.sum(-1).int()
        rows = count_value_rows(any_true(keep, 1)[None], 1, self.shape.head_dim)
        self.value_rows[sequence, head] = rows[0, 0].int()


def seen_keys(shape: Shape) -> list[int]:
    """Count the keys that each query token sees: the last one all.

    Example:
        >>> seen_keys(Shape(1, 4, 2, n=64, k=8, query_tokens=3))
        [62, 63, 64]
    """
    length = torch.tensor([shape.n], dtype=torch.int64, device="cpu")
    counts: list[int] = row_lengths(length, None, shape.query_tokens)[0].tolist()
    return counts


def hidden_keys(shape: Shape, device: torch.device) -> Tensor:
    """Mark the keys that each query token does not see, bool [Sq, n]."""
    seen = torch.tensor(seen_keys(shape), dtype=torch.int64, device=device)
    return torch.arange(shape.n, device=device) >= seen[:, None]


def threshold_after(scores: Tensor, k: int) -> Tensor:
    """Find per row of scores [..., n] a value below its k-th largest and not below the next; -inf if all are kept."""
    if k == scores.shape[-1]:
        return torch.full_like(scores[..., 0], -math.inf)
    last, following = scores.topk(k + 1, dim=-1).values[..., -2:].unbind(-1)
    middle = (last + following) / 2
    # two neighbours among the float32 numbers have nothing between them
    return torch.where(middle < last, middle, following)


def _shuffled_blocks(shape: Shape, seed: int) -> Tensor:
    order = torch.randperm(shape.batch * shape.blocks, generator=torch.Generator().manual_seed(seed), device="cpu")
    return order.view(shape.batch, shape.blocks).int()


def _paged(cache: Tensor, block_table: Tensor, shape: Shape) -> Tensor:
    """Lay [B, Hkv, n, D] out as a pool [blocks, Hkv, block_size, D]."""
    padding = shape.blocks * shape.block_size - shape.n
    padded = torch.nn.functional.pad(cache, (0, 0, 0, padding))
    blocks = padded.unflatten(2, (shape.blocks, shape.block_size)).transpose(1, 2).flatten(0, 1)
    pool = torch.empty(blocks.shape, dtype=cache.dtype, device=cache.device)
    pool[block_table.flatten().long()] = blocks
    return pool
