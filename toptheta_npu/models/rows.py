"""Where the visible keys of a call's rows lie: their number and their first key, from mask and cache."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from toptheta_npu.errors import TopThetaNotImplementedError


@dataclass(frozen=True)
class Rows:
    """The rows of one attention call.

    Attributes:
        span: keys in use; a preallocated cache may hold more.
        counts: int64 [B, Q], visible keys of every row, its own included; 0 for a padding row.
        lengths, starts: int64 [B], valid keys per sequence and the first of them; None: all ``span`` keys.
        host_lengths: int64 [B] on the CPU, valid keys per sequence; None where only the device knows them.
    """

    span: int
    counts: Tensor
    lengths: Tensor | None
    starts: Tensor | None
    host_lengths: Tensor | None


class ForwardRows:
    """Works the rows out once per forward pass: all layers of a pass have the same.

    Attributes:
        longest: visible keys of the longest row so far, among the rows that a threshold rule may judge.
    """

    def __init__(self) -> None:
        self.longest: int | Tensor = 0
        self._layer = -1
        self._mask: weakref.ref[Tensor] | None = None
        self._shape: tuple[object, ...] = ()
        self._rows: Rows | None = None
        self._unjudged: Rows | None = None

    def of(self, layer: int, query: Tensor, key: Tensor, mask: Tensor | None, seen: int | Tensor | None) -> Rows:
        """The rows of this call of ``layer``; ``seen`` is the number of tokens in the cache, None without one."""
        shape = (query.shape[0], query.shape[2], key.shape[2], query.device)
        same_mask = mask is None if self._mask is None else self._mask() is mask
        # a layer never runs twice in a pass, so a smaller index is a new pass
        if self._rows is None or layer <= self._layer or not same_mask or shape != self._shape:
            find = decode_rows if query.shape[2] == 1 else prefill_rows
            self._rows = self._unjudged = find(query, key, mask, seen)
            self._mask = None if mask is None else weakref.ref(mask)
            self._shape = shape
        self._layer = layer
        return self._rows

    def judged(self) -> None:
        """Notes, once per pass, that a threshold rule goes over the rows."""
        rows, self._unjudged = self._unjudged, None
        if rows is None:
            return
        if rows.host_lengths is not None and not isinstance(self.longest, Tensor):
            self.longest = max(self.longest, int(rows.host_lengths.max()))
        else:
            longest = rows.counts.amax()
            self.longest = torch.maximum(longest, torch.as_tensor(self.longest, device=longest.device))


def decode_rows(query: Tensor, key: Tensor, mask: Tensor | None, seen: int | Tensor | None) -> Rows:
    """The rows of a step with one token per sequence."""
    batch, capacity = query.shape[0], key.shape[2]
    if mask is None and not isinstance(seen, Tensor):
        host = torch.full((batch,), capacity)
        return Rows(capacity, host[:, None].to(query.device), None, None, host)
    starts = None
    if mask is None:
        lengths = torch.as_tensor(seen, device=query.device).long().repeat(batch)
    else:
        visible = _checked(mask, query, key)[:, 0]
        lengths, starts = visible.sum(-1), visible.int().argmax(-1)
        column = torch.arange(capacity, device=mask.device)
        _check_pattern(visible, (column >= starts[:, None]) & (column < (starts + lengths)[:, None]))
    host_lengths = None if isinstance(seen, Tensor) else lengths.cpu()
    return Rows(capacity, lengths[:, None], lengths, starts, host_lengths)


def prefill_rows(query: Tensor, key: Tensor, mask: Tensor | None, seen: int | Tensor | None) -> Rows:
    """The rows of a prompt, or of a chunk of one whose past is in the cache."""
    batch, rows, capacity = query.shape[0], query.shape[2], key.shape[2]
    span = capacity if seen is None else int(seen)
    position = torch.arange(span - rows, span, device=query.device)
    if mask is None:
        if span != rows:
            _refuse("a mask, since the cache holds a past", "None", "let the model make its mask")
        counts = (position + 1).repeat(batch, 1)
        return Rows(span, counts, None, None, torch.full((batch,), span))
    visible = _checked(mask, query, key)
    valid = visible.any(1)
    lengths, starts = valid.sum(-1), valid.int().argmax(-1)
    column = torch.arange(capacity, device=mask.device)
    within = (column >= starts[:, None]) & (column < (starts + lengths)[:, None])  # [B, S]
    _check_pattern(visible, within[:, None] & (column <= position[:, None]))
    counts = (position + 1 - starts[:, None]).clamp_min(0)
    counts = torch.where(position < (starts + lengths)[:, None], counts, 0)
    return Rows(span, counts, lengths, starts, lengths.cpu())


def _checked(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask as bool [B, Q, S]."""
    want = (query.shape[0], 1, query.shape[2], key.shape[2])
    if mask.dtype != torch.bool or tuple(mask.shape) != want:
        _refuse(
            f"a bool mask {list(want)}, made by the model from a 2-D padding mask",
            f"{str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}",
            "pass the 2-D padding mask, or none",
        )
    return mask[:, 0]


def _check_pattern(visible: Tensor, expected: Tensor) -> None:
    # tracing cannot look at values; the masks of a compiled step are transformers' own
    if torch.compiler.is_compiling() or torch.equal(visible, expected):
        return
    _refuse(
        "plain causal attention over one run of tokens per sequence, padded on the left or on the right",
        "a mask with holes, packed sequences or another pattern",
        "pad on the left, run packed sequences as a batch, and leave custom masks out",
    )


def _refuse(expected: str, got: str, remedy: str) -> NoReturn:
    raise TopThetaNotImplementedError("attention_mask", expected, got, remedy)
