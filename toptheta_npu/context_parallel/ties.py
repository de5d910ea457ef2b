"""Which of several equal largest elements stands in for a row that keeps nothing, where keys go round the ranks.

In one process it is the lowest key. Parts in the order of their keys give that by themselves; where blocks of keys go
round, the ranks have to say where their largest elements lie.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..fallback.layout import head_view, query_heads
from .exchange import Exchange
from .parts import Parts, Share

#: An index is written into V rows in digits that every dtype holds exactly.
_BASE, _DIGITS = 256, 4


def settle_ties(parts: Parts, share: Share, exchange: Exchange, interleave: int) -> Parts:
    """Let the right rank keep its largest element, in every row that several ranks could stand in for.

    Return ``parts`` with this change. Exchange nothing unless there is such a row.
    """
    largest = parts.maximum.amax(0)
    candidates = parts.maximum == largest
    tied = (parts.kept.sum(0) == 0) & (candidates.sum(0) > 1) & (largest > -torch.inf)
    if not tied.any():
        return parts
    local = exchange.gather([_largest_keys(share, tied)])[0].long()
    rank = torch.arange(exchange.world_size, device=local.device).view(-1, *[1] * tied.dim())
    key = (local // interleave * exchange.world_size + rank) * interleave + local % interleave
    winner = key.where(candidates, torch.iinfo(torch.int64).max).argmin(0, keepdim=True)
    wins = torch.zeros_like(candidates).scatter_(0, winner, True) & tied
    return parts._replace(
        kept=torch.where(wins, 1, parts.kept),
        kept_mass=torch.where(wins, 1.0, parts.kept_mass),
        discarded_mass=torch.where(wins, (parts.discarded_mass - 1).clamp_min(0.0), parts.discarded_mass),
    )


def _largest_keys(share: Share, wanted: Tensor) -> Tensor:
    """Find the index of this rank's largest element, the first among equals: int32, of rows like ``wanted``.

    It is 0 in sequences with no row ``wanted``. The operator itself finds it, since only its own scores compare as it
    compares them. In place of V it gets rows that hold their own index.
    """
    heads, layout = share.arguments.num_heads, share.arguments.input_layout
    found = torch.zeros_like(wanted, dtype=torch.int32)
    for sequence in wanted.flatten(1).any(1).nonzero().flatten().tolist():
        rows = share.largest(sequence, _indices(share, sequence))
        found[sequence] = _from_digits(query_heads(rows, layout, heads)[0]).view_as(found[sequence])
    return found


def _indices(share: Share, sequence: int) -> Tensor:
    """Make rows that hold their own index in the cache of one sequence, to stand in place of V."""
    a, table = share.arguments, share.arguments.block_table
    # in the query's dtype: int8 would not hold the digits
    values = torch.zeros_like(a.value[sequence : sequence + 1] if table is None else a.value, dtype=a.query.dtype)
    # [1 or blocks, Hkv, rows, D]
    rows = head_view(values, a.input_layout, a.num_key_value_heads, paged=table is not None)
    size = rows.shape[2]
    if table is None:
        rows[..., :_DIGITS] = _digits(torch.arange(size, device=values.device), values.dtype)
        return values
    blocks = table[sequence, : -(-int(share.n[sequence].max()) // size)].long()
    for number, block in enumerate(blocks.tolist()):
        index = torch.arange(number * size, (number + 1) * size, device=values.device)
        rows[block, :, :, :_DIGITS] = _digits(index, values.dtype)
    return values


def _digits(index: Tensor, dtype: torch.dtype) -> Tensor:
    """Split indices into digits: [rows] -> [rows, digits], the lowest first."""
    return torch.stack([index // _BASE**digit % _BASE for digit in range(_DIGITS)], -1).to(dtype)


def _from_digits(rows: Tensor) -> Tensor:
    """Read the indices that V rows [..., D] hold, int32 [...]."""
    weights = torch.tensor([_BASE**digit for digit in range(_DIGITS)], dtype=torch.int64, device=rows.device)
    return (rows[..., :_DIGITS].round().long() * weights).sum(-1).int()
