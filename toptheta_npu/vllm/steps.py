"""One step of a serving engine, without the engine: which rows decode, and what the operator does with them.

An engine hands over the new tokens of all sequences in one tensor [T, Hq, D], one sequence after the other, and a
paged cache that holds their keys and values already. A sequence with one new token is a row of a decode step, and
sparse. One with several (a prompt, a chunk of one, or drafted tokens to be verified) is the engine's own affair,
unless the settings have such rows thresholded, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .._value_checks import are_seen
from ..operator import incremental_attention, incremental_attention_with_stats, prefill_attention
from .layers import LayerRule
from .page_sums import SeenPlaces


@dataclass(frozen=True, eq=False)
class Step:
    """Where the rows of one step lie.

    Attributes:
        query_start_loc: int32 [B+1], the first new token of every sequence, and their number. On the CPU unless
            ``decode_only``.
        seq_lens: int32 [B], the keys of every sequence, its new tokens included; on the device.
        block_table: int32 [B, blocks], the pages of every sequence; on the device.
        decode_only: every sequence has one new token, so that nothing here has to be read by the host.
        sequences: int64 [S], the sequences with one new token; None: all of them, in order.
        tokens: int64 [S], these tokens; None: token i is that of sequence i.
        several: the sequences with several new tokens.
        dense_tokens: int64, the tokens of these sequences.

    Example:
        >>> step = Step.of(torch.tensor([0, 1, 4, 5]), torch.tensor([9, 3, 20]), torch.zeros(3, 2, dtype=torch.int32))
        >>> step.sequences.tolist(), step.tokens.tolist(), step.several, step.dense_tokens.tolist()
        ([0, 2], [0, 4], (1,), [1, 2, 3])
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    decode_only: bool = False
    sequences: Tensor | None = None
    tokens: Tensor | None = None
    several: tuple[int, ...] = ()
    dense_tokens: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    _places: dict[int, SeenPlaces] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor) -> Step:
        """Make the step of these tokens: ``query_start_loc`` on the CPU. Sequences without new tokens are left out."""
        starts = query_start_loc.tolist()
        counts = [end - start for start, end in pairwise(starts)]
        if all(count == 1 for count in counts):
            return cls(query_start_loc, seq_lens, block_table, decode_only=True)
        single = [index for index, count in enumerate(counts) if count == 1]
        several = tuple(index for index, count in enumerate(counts) if count > 1)
        dense = [token for index in several for token in range(starts[index], starts[index + 1])]
        device = seq_lens.device
        return cls(
            query_start_loc, seq_lens, block_table, False, torch.tensor(single, dtype=torch.int64, device=device),
            torch.tensor([starts[index] for index in single], dtype=torch.int64, device=device), several,
            torch.tensor(dense, dtype=torch.int64, device=device),
        )  # fmt: skip

    @property
    def decodes(self) -> bool:
        """Whether any sequence has one new token."""
        return self.decode_only or (self.sequences is not None and len(self.sequences) > 0)

    def places(self, table: Tensor, lengths: Tensor, block_size: int) -> SeenPlaces:
        """Find where the decoded sequences lie, on a CPU alone. The first layer of a step that asks computes it."""
        if block_size not in self._places:
            self._places[block_size] = SeenPlaces(table, lengths, block_size)
        return self._places[block_size]

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield of every sequence with several new tokens its index, its first token and the token after its last."""
        starts = self.query_start_loc.tolist() if self.several else []
        for index in self.several:
            yield index, starts[index], starts[index + 1]


def attend(step: Step, query: Tensor, key_cache: Tensor, value_cache: Tensor, rule: LayerRule, out: Tensor) -> None:
    """Write the rows of a step that follow the thresholds into ``out``. The others keep what they hold.

    These are the rows of sequences with one new token, and all with ``rule.prefill`` "thresholded". A step with
    ``decode_only`` reads nothing on the host, so that a graph can capture it.

    Args:
        step: where the rows lie.
        query: [T, Hq, D].
        key_cache, value_cache: the pages, [blocks, Hkv, block_size, D] with any strides or
            [blocks, block_size, Hkv*D], the new tokens' rows included.
        rule: of the layer.
        out: [T, Hq, D].
    """
    if step.decodes:
        _decode(step, query, key_cache, value_cache, rule, out)
    if rule.prefill == "thresholded":
        for index, start, end in step.ranges():
            rows = _prompt(step, index, query[start:end], key_cache, value_cache, rule)
            out[start:end] = rows


def _decode(step: Step, query: Tensor, key_cache: Tensor, value_cache: Tensor, rule: LayerRule, out: Tensor) -> None:
    lengths, table, rows = step.seq_lens, step.block_table, query
    if step.sequences is not None:
        lengths, table, rows = lengths[step.sequences], table[step.sequences], query[step.tokens]
    rows = rows[: len(lengths)].unsqueeze(2)
    mean = None
    if rule.vmc:
        assert rule.page_sums is not None
        values = _by_heads(value_cache, rule)
        places = step.places(table, lengths, values.shape[2]) if are_seen(lengths) else None
        mean = rule.page_sums.mean(values, table, lengths, places)
    arguments: dict[str, Any] = {
        "actual_seq_lengths": lengths,
        "block_table": table,
        "block_size": key_cache.shape[2 if key_cache.dim() == 4 else 1],
        "num_key_value_heads": rule.num_key_value_heads,
        "scale_value": rule.scale,
        "value_mean": mean,
        **rule.options(lengths),
    }
    theta = arguments.pop("threshold")
    if rule.counters is None:
        result = incremental_attention(rows, key_cache, value_cache, theta, **arguments)
    else:
        result, _, kept, value_rows = incremental_attention_with_stats(rows, key_cache, value_cache, theta, **arguments)
        rule.counters.add(lengths, kept, value_rows, rule.aims)
    if step.tokens is None:
        out[: len(lengths)] = result.squeeze(2)
    else:
        out[step.tokens] = result.squeeze(2)


def _prompt(step: Step, index: int, query: Tensor, key_cache: Tensor, value_cache: Tensor, rule: LayerRule) -> Tensor:
    """Compute the rows [Q, Hq, D] of one sequence with several new tokens, each by the rule of its own decode step."""
    length = int(step.seq_lens[index])
    counts = torch.arange(length - len(query) + 1, length + 1, device=query.device)
    key, value = (_gathered(cache, step.block_table[index], length, rule) for cache in (key_cache, value_cache))
    options = rule.options(counts)
    theta = options.pop("threshold").T
    if options["discarded_mass"] is not None:
        options["discarded_mass"] = options["discarded_mass"].T[None]
    out = prefill_attention(
        query.transpose(0, 1)[None], key, value, theta, scale_value=rule.scale, vmc=rule.vmc, **options
    )
    return out[0].transpose(0, 1)


def _by_heads(cache: Tensor, rule: LayerRule) -> Tensor:
    """View pages as [blocks, Hkv, block_size, D], without a copy."""
    if cache.dim() == 4:
        return cache
    blocks, rows, _ = cache.shape
    return cache.view(blocks, rows, rule.num_key_value_heads, -1).transpose(1, 2)


def _gathered(cache: Tensor, table: Tensor, length: int, rule: LayerRule) -> Tensor:
    """Gather the rows of one sequence in a row: [1, Hkv, length, D]."""
    pages = _by_heads(cache, rule)
    rows = pages.shape[2]
    taken = pages[table[: -(-length // rows)].long()].transpose(0, 1)
    return taken.reshape(pages.shape[1], -1, pages.shape[3])[None, :, :length]
