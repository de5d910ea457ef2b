"""What a sparse run kept, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_choice
from ...errors import TopThetaTypeError, TopThetaValueError, shown
from ..hook.architecture import num_heads, num_key_value_heads, num_layers
from ..hook.attention import AttentionCall
from .summaries import LayerSummary, SummaryRecorder

#: What `sparsify` and `apply_selection` collect: every row, or sums over the rows.
Statistics = Literal["rows", "summary"]


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """The rows of one layer in the order of the calls, padding left out.

    Attributes:
        keys: int32 [rows], visible keys, the row's own included.
        kept: int32 [rows, Hq], elements kept per query head.
        value_rows: int32 [rows, Hkv], V rows needed per KV head: the union over all its query heads. If a group is
            larger than the operator's head block, the operator may read some of them more than once.
        decode: bool [rows], False for rows of a prefill.
        empty: bool [rows, Hq], True if nothing passed and the largest element stands in; kept is 1 then.

    Example:
        >>> rows = LayerStatistics(
        ...     keys=torch.tensor([8, 9]), kept=torch.tensor([[4, 2], [3, 3]]),
        ...     value_rows=torch.tensor([[5], [4]]), decode=torch.tensor([False, True]),
        ...     empty=torch.zeros(2, 2, dtype=torch.bool))
        >>> rows.kept[rows.decode].float().mean().item()
        3.0
    """

    keys: Tensor
    kept: Tensor
    value_rows: Tensor
    decode: Tensor
    empty: Tensor


class RowRecorder:
    """Collects the rows of one layer. They stay on the device until they are asked for."""

    def __init__(self, num_heads: int, num_key_value_heads: int) -> None:
        self._heads = (num_heads, num_key_value_heads)
        self._calls: list[tuple[Tensor, Tensor, Tensor, Tensor, bool]] = []

    def record(
        self, call: AttentionCall, kept: Tensor, value_rows: Tensor, empty: Tensor, aims: Tensor | None = None,
        *, decode: bool,
    ) -> None:  # fmt: skip
        """Add the rows of a call: kept and empty [B, Hq, Q], value_rows [B, Hkv, Q]. ``decode``: they are of steps."""
        # one append, which threads cannot tear apart
        self._calls.append((call.rows.counts, kept, value_rows, empty, decode))

    def clear(self) -> None:
        """Forget all rows."""
        self._calls.clear()

    def result(self) -> LayerStatistics:
        """Join all rows so far on the CPU."""
        heads, kv_heads = (torch.zeros(0, count, dtype=torch.int32, device="cpu") for count in self._heads)
        parts: list[tuple[Tensor, ...]] = [(heads[:, 0], heads, kv_heads, heads[:, 0].bool(), heads.bool())]
        for counts, *of_call, is_decode in list(self._calls):
            keys = counts.flatten().cpu()
            real = keys > 0
            kept, value_rows, empty = (rows.transpose(1, 2).flatten(0, 1).cpu()[real] for rows in of_call)
            keys = keys[real].int()
            parts.append(
                (keys, kept.int(), value_rows.int(), torch.full_like(keys, is_decode, dtype=torch.bool), empty)
            )
        return LayerStatistics(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


Recorder = RowRecorder | SummaryRecorder


def make_recorders(
    model: PreTrainedModel, kind: Statistics = "rows", targets: Sequence[int] | None = None
) -> list[Recorder]:
    """Make one recorder per layer. ``targets`` is the number of elements that the rows of each layer aim at."""
    heads, kv_heads = num_heads(model), num_key_value_heads(model)
    if kind == "rows":
        return [RowRecorder(heads, kv_heads) for _ in range(num_layers(model))]
    aims = [None] * num_layers(model) if targets is None else targets
    return [SummaryRecorder(heads, kv_heads, aim) for aim in aims]


def checked_statistics(statistics: Any) -> Statistics | None:
    """Tell which statistics an argument asks for. True means every row.

    Raises:
        TopThetaTypeError, TopThetaValueError: the argument is neither a bool nor the name of a kind.
    """
    if type(statistics) is bool:
        return "rows" if statistics else None
    if not isinstance(statistics, str):
        raise TopThetaTypeError("statistics", "True, False, 'rows' or 'summary'", shown(statistics))
    check_choice("statistics", statistics, get_args(Statistics))
    return statistics  # type: ignore[return-value]


class Recording:
    """The statistics of a `sparsify` or `apply_selection` context."""

    def __init__(self, recorders: Sequence[Recorder] | None) -> None:
        self._recorders = recorders

    def statistics(self) -> list[LayerStatistics]:
        """Return the rows recorded so far, one entry per layer. Rows of a dense prefill are not recorded.

        Rows keep the order of the calls. All layers have the same order if one thread at a time runs the model.

        Raises:
            TopThetaValueError: the context was entered without ``statistics=True``.
        """
        recorders = [recorder for recorder in self._recorders or () if isinstance(recorder, RowRecorder)]
        self._check(bool(recorders), "True")
        return [recorder.result() for recorder in recorders]

    def summaries(self) -> list[LayerSummary]:
        """Compute the sums over the rows recorded so far, one entry per layer, over all threads.

        Raises:
            TopThetaValueError: the context was entered without ``statistics="summary"``.
        """
        recorders = [recorder for recorder in self._recorders or () if isinstance(recorder, SummaryRecorder)]
        self._check(bool(recorders), "'summary'")
        return [recorder.result() for recorder in recorders]

    def clear(self) -> None:
        """Discard the recorded rows, for example between two sequences.

        Raises:
            TopThetaValueError: the context was entered without ``statistics``.
        """
        self._check(self._recorders is not None, "True")
        for recorder in self._recorders or ():
            recorder.clear()

    def _check(self, collected: bool, wanted: str) -> None:
        if collected:
            return
        got = "one that does not"
        if self._recorders:
            got = "one that collects " + ("every row" if wanted != "True" else "sums over the rows")
        raise TopThetaValueError(
            "statistics", "a context that collects them", got, f"enter it with statistics={wanted}"
        )
