"""What recorders of rows have in common: drafts that are rejected later are no rows of the sequence."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import StaticLayer

from ..caches.value_mean import CachedLayer
from ..hook.attention import AttentionCall


class RecordedRows(NamedTuple):
    """What the rows of one call kept.

    Attributes:
        span: most keys that a row has.
        decode: whether they are rows of decode steps.
        counts: int64 [B, Q], visible keys of each row; 0 where it does not count.
        kept, empty: [B, Hq, Q].
        value_rows: [B, Hkv, Q].
        wanted_by: [B, Hkv, Q, Hq / Hkv]; None: nobody counted them.
        aims: [B, Hq, Q], the elements that each row aims at; None: nothing said so.
    """

    span: int
    decode: bool
    counts: Tensor
    kept: Tensor
    value_rows: Tensor
    empty: Tensor
    wanted_by: Tensor | None
    aims: Tensor | None


class _Waiting(NamedTuple):
    """Rows of a call with drafts, and the cache layer whose length will tell which of them were accepted."""

    layer: Any
    rows: RecordedRows

    def accepted(self, length: int | None) -> RecordedRows:
        """Leave out what lies behind the first ``length`` tokens. Emptied and preallocated layers drop none."""
        rows = self.rows
        if not length or isinstance(self.layer, StaticLayer):
            return rows
        new = rows.counts.shape[1]
        token = torch.arange(new, device=rows.counts.device)
        return rows._replace(counts=torch.where(token < length - (rows.span - new), rows.counts, 0))


class AcceptedRows:
    """Adds the rows of a layer one call after the other, those of verified drafts once it is known which are accepted.

    That is with the next call of the thread, or when the rows are asked for. Until then the layer of the cache is held.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    def record(
        self,
        call: AttentionCall,
        kept: Tensor,
        value_rows: Tensor,
        empty: Tensor,
        wanted_by: Tensor | None = None,
        aims: Tensor | None = None,
        *,
        verified: bool = False,
    ) -> None:
        """Add the rows of a call, as `RecordedRows` has them. ``verified`` ones may be dropped from the cache later."""
        thread, counts, span = threading.get_ident(), call.rows.counts, call.rows.span
        decode = verified or counts.shape[1] == 1
        rows = RecordedRows(span, decode, counts, kept, value_rows, empty, wanted_by, aims)
        if verified and call.cached is not None:
            self._waiting[thread] = _Waiting(call.cached.layer, rows)
        else:
            self._add(thread, rows)

    def settle(self, cached: CachedLayer | None) -> None:
        """Add the rows of this thread that wait, before it records those of a call with the layer ``cached``."""
        waiting = self._waiting.pop(threading.get_ident(), None)
        if waiting is not None:
            goes_on = cached is not None and cached.layer is waiting.layer
            length = cached.past if cached is not None and goes_on else _length(waiting.layer)
            self._add(threading.get_ident(), waiting.accepted(length))

    def _settle_all(self) -> None:
        for thread in list(self._waiting):
            waiting = self._waiting.pop(thread, None)
            if waiting is not None:
                self._add(thread, waiting.accepted(_length(waiting.layer)))

    def _add(self, thread: int, rows: RecordedRows) -> None:
        raise NotImplementedError


def _length(layer: Any) -> int:
    return int(layer.get_seq_length())
