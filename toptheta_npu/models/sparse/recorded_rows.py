"""The rows of one call, and what recorders of rows have in common."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..hook.attention import AttentionCall


class RecordedRows(NamedTuple):
    """What the rows of one call kept.

    Attributes:
        span: most keys that a row has.
        decode: whether they are rows of decode steps.
        counts: int64 [B, Q], visible keys of each row; 0 where it does not count.
        kept, empty: [B, Hq, Q].
        value_rows: [B, Hkv, Q].
        aims: [B, Hq, Q], the elements that each row aims at; None: nothing said so.
    """

    span: int
    decode: bool
    counts: Tensor
    kept: Tensor
    value_rows: Tensor
    empty: Tensor
    aims: Tensor | None


class RowsOfCalls:
    """Adds the rows of a layer one call after the other."""

    def record(
        self,
        call: AttentionCall,
        kept: Tensor,
        value_rows: Tensor,
        empty: Tensor,
        aims: Tensor | None = None,
        *,
        verified: bool = False,
    ) -> None:
        """Add the rows of a call, as `RecordedRows` has them. ``verified`` ones are several decode steps at once."""
        counts = call.rows.counts
        decode = verified or counts.shape[1] == 1
        self._add(RecordedRows(call.rows.span, decode, counts, kept, value_rows, empty, aims))

    def _add(self, rows: RecordedRows) -> None:
        raise NotImplementedError
