"""Finds the visible keys of a call's rows, their number and first key, from mask and cache."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from ...errors import TopThetaNotImplementedError


@dataclass(frozen=True)
class Rows:
    """The rows of one attention call.

    Attributes:
        span: keys in use; a preallocated cache may hold more.
        counts: int64 [B, Q], visible keys of every row, its own included; 0 for a padding row.
        lengths, starts: int64 [B], number of valid keys per sequence and index of the first; None: all ``span`` keys.
        host_lengths: int64 [B] on the CPU, valid keys per sequence; None if only the device knows them.
        query_lengths: int64 [B], real new tokens per sequence, which come first; None: all Q.
        continue_sequences: whether each sequence is known to have keys from before the call.
    """

    span: int
    counts: Tensor
    lengths: Tensor | None
    starts: Tensor | None
    host_lengths: Tensor | None
    query_lengths: Tensor | None = None
    continue_sequences: bool = False

    @property
    def before_call(self) -> Rows:
        """The rows of the last token before the call, one per sequence. Counts may be 0."""
        new = self.counts.shape[1]
        of_sequence = new if self.query_lengths is None else self.query_lengths
        on_host = of_sequence if isinstance(of_sequence, int) else of_sequence.cpu()
        valid = self.counts[:, -1] if self.lengths is None else self.lengths
        return Rows(
            self.span - new, (valid - of_sequence)[:, None], None if self.lengths is None else valid - of_sequence,
            self.starts, None if self.host_lengths is None else self.host_lengths - on_host,
        )  # fmt: skip

    def of_token(self, token: int) -> Rows:
        """The rows of one of the new tokens alone, as a decode step has them."""
        counts = self.counts[:, token]
        return Rows(self.span, counts[:, None], counts, self.starts, None)


class ForwardRows:
    """Finds the rows once per forward pass, since all layers of a pass share them. Every thread has its own pass.

    Attributes:
        most_drafts: the most tokens that a call of ``generate`` verified.
    """

    def __init__(self) -> None:
        self.most_drafts = 0
        self._longest: int | Tensor = 0
        self._noting = threading.Lock()
        self._threads = threading.local()

    @property
    def longest(self) -> int | Tensor:
        """Visible keys of the longest row so far, among the rows that a threshold rule may apply to."""
        return self._longest

    def of(self, layer: int, query: Tensor, key: Tensor, mask: Tensor | None, seen: int | Tensor | None) -> Rows:
        """Find the rows of this call of ``layer``. ``seen`` is the number of tokens in the cache, None without one."""
        current: _Pass | None = getattr(self._threads, "current", None)
        shape = (query.shape[0], query.shape[2], key.shape[2], query.device)
        # a layer never runs twice in a pass, so a smaller index is a new pass
        if current is None or layer <= current.layer or not current.has(mask, shape):
            rows = find_rows(query, key, mask, seen)
            current = self._threads.current = _Pass(rows, None if mask is None else weakref.ref(mask), shape)
        current.layer = layer
        return current.rows

    def note_longest(self) -> None:
        """Note, once per pass, the length of the rows that a threshold rule processes in this thread's pass."""
        current: _Pass = self._threads.current
        if current.noted:
            return
        current.noted = True
        if torch.compiler.is_compiling():  # a lock cannot be traced
            self._note(current.rows)
        else:
            with self._noting:
                self._note(current.rows)

    def _note(self, rows: Rows) -> None:
        if rows.host_lengths is not None and not isinstance(self._longest, Tensor):
            self._longest = max(self._longest, int(rows.host_lengths.max()))
        else:
            longest = rows.counts.amax()
            before = torch.as_tensor(self._longest, dtype=torch.int64, device=longest.device)
            self._longest = torch.maximum(longest, before)


@dataclass(eq=False)
class _Pass:
    """One forward pass through the layers."""

    rows: Rows
    mask: weakref.ref[Tensor] | None
    shape: tuple[object, ...]
    layer: int = -1
    noted: bool = False

    def has(self, mask: Tensor | None, shape: tuple[object, ...]) -> bool:
        """Tell whether a call with this mask and these shapes belongs to this pass."""
        same_mask = mask is None if self.mask is None else self.mask() is mask
        return same_mask and shape == self.shape


def find_rows(query: Tensor, key: Tensor, mask: Tensor | None, seen: int | Tensor | None) -> Rows:
    """Find the rows of a step of one token, of a prompt, or of a chunk of one whose past is in the cache."""
    batch, new, capacity = query.shape[0], query.shape[2], key.shape[2]
    span = capacity if new == 1 or seen is None else int(seen)
    position = torch.arange(span - new, span, device=query.device)
    if mask is None:
        if new == 1 and isinstance(seen, Tensor):
            lengths = seen.to(query.device, torch.int64).repeat(batch)
            return Rows(capacity, lengths[:, None], lengths, None, None)
        if span != new > 1:
            _refuse("a mask, since the cache holds a past", "None", "let the model make its mask")
        host = torch.full((batch,), span, dtype=torch.int64, device="cpu")
        return Rows(span, (position + 1).repeat(batch, 1), None, None, host)
    visible = _checked(mask, query, key)
    valid = visible.any(1)
    lengths, starts = valid.sum(-1), valid.int().argmax(-1)
    column = torch.arange(capacity, device=mask.device)
    within = (column >= starts[:, None]) & (column < (starts + lengths)[:, None])  # [B, S]
    _check_pattern(visible, within[:, None], column <= position[:, None])
    if new == 1:
        return Rows(span, lengths[:, None], lengths, starts, None if isinstance(seen, Tensor) else lengths.cpu())
    counts = (position + 1 - starts[:, None]).clamp_min(0)
    counts = torch.where(position < (starts + lengths)[:, None], counts, 0)
    real, host = (counts > 0).sum(1), lengths.cpu()
    if torch.compiler.is_compiling():
        return Rows(span, counts, lengths, starts, host)
    on_host = real.cpu()
    continues = bool((host > on_host).all())
    return Rows(span, counts, lengths, starts, host, None if bool((on_host == new).all()) else real, continues)


def _checked(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Check the mask. Return it as bool [B, Q, S]."""
    want = (query.shape[0], 1, query.shape[2], key.shape[2])
    if mask.dtype != torch.bool or tuple(mask.shape) != want:
        _refuse(
            f"a bool mask {list(want)}, made by the model from a 2-D padding mask",
            f"{str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}",
            "pass the 2-D padding mask, or none",
        )
    return mask[:, 0]


def _check_pattern(visible: Tensor, within: Tensor, earlier: Tensor) -> None:
    # tracing cannot read values; the masks of a compiled step are transformers' own
    if torch.compiler.is_compiling() or torch.equal(visible, within & earlier):
        return
    if bool((visible & ~earlier).any()):
        _refuse(
            "plain causal attention", "a mask by which tokens see later ones, as those of an image or a prefix do",
            "run a prompt with images or a prefix before the context, and pass the cache it filled to the calls within",
        )  # fmt: skip
    _refuse(
        "plain causal attention over one run of tokens per sequence, padded on the left or on the right",
        "a mask with holes, a prompt padded on the right that goes on, packed sequences or another pattern",
        "pad on the left (tokenizer.padding_side = 'left'), run packed sequences as a batch, and pass no custom mask",
    )


def _refuse(expected: str, got: str, remedy: str) -> NoReturn:
    raise TopThetaNotImplementedError("attention_mask", expected, got, remedy)
